"""Texts that must not be trained on: the harvest's own evaluation items, and those that a config names."""

import json
from pathlib import Path

from trivium.corpus.clean.extract import extract_step
from trivium.corpus.config import CurateConfig, DecontaminationConfig
from trivium.corpus.files import Input
from trivium.corpus.read.inputs import as_read_at, files_at
from trivium.corpus.steps import Keep
from trivium.errors import DataError

EVALUATION_ITEMS = "evaluation_items.jsonl"


def evaluation_items(source: Path) -> dict[str, str]:
    """Return the evaluation texts of a harvest by id; none if there is no such file."""
    path = source / EVALUATION_ITEMS
    if not path.is_file():
        return {}
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        return {str(row["id"]): str(row["text"]) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}: {error}); harvest again") from None


def evaluation_texts(source: Path, config: CurateConfig) -> dict[str, str]:
    """Return every text that must not be trained on.

    The texts are extracted and tidied as the corpus is. Otherwise a letter that is written in another way would hide
    them.
    """
    found = evaluation_items(source)
    extract = extract_step(config.extract)
    for place in config.decontamination.against:
        for number, document in enumerate(as_read_at(Input(Path(place)))):
            verdict = extract.judge(document)
            found[f"{place}:{number}"] = verdict.document.text if isinstance(verdict, Keep) else ""
    return found


def files_against(config: DecontaminationConfig) -> list[Path]:
    """Return the files of the evaluation texts that a config names."""
    return [file for place in config.against for file in files_at(Path(place))]
