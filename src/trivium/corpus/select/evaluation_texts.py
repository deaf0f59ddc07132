"""Texts that must not be trained on: the harvest's own evaluation items, and those that a config names."""

import json
from functools import lru_cache
from pathlib import Path

from trivium.corpus.clean.extract import extract_step
from trivium.corpus.config import CurateConfig
from trivium.corpus.read.files import Input
from trivium.corpus.read.inputs import as_read_at
from trivium.corpus.select.decontaminate import Keys
from trivium.corpus.steps import Keep
from trivium.corpus.work import Job
from trivium.errors import DataError

EVALUATION_ITEMS = "evaluation_items.jsonl"  # of a harvest


@lru_cache(maxsize=2)  # made once in a process
def evaluation_keys(job: Job[CurateConfig]) -> Keys:
    """Return the n-grams of the evaluation texts, including common phrases."""
    return Keys(evaluation_texts(Path(job.source), job.config), job.config.decontamination)


def evaluation_items(source: Path) -> dict[str, str]:
    """Return the evaluation texts of a harvest by id; an empty dict if it has none."""
    path = source / EVALUATION_ITEMS
    if not path.is_file():
        return {}
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        return {str(row["id"]): str(row["text"]) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}: {error}); harvest again") from None


def evaluation_texts(source: Path, config: CurateConfig) -> dict[str, str]:
    """Return every text that must not be trained on: those of the harvest and those that the config names. None is cut
    out of documents that are kept unchanged.

    The latter are extracted and tidied as the corpus is. Otherwise a letter in another encoding would hide them.
    """
    if config.keep_all:
        return {}
    texts = evaluation_items(source)
    extract = extract_step(config.extract)
    for place in config.decontamination.against:
        for number, document in enumerate(as_read_at(Input(Path(place)))):
            verdict = extract.judge(document)
            texts[f"{place}:{number}"] = verdict.document.text if isinstance(verdict, Keep) else ""
    return texts
