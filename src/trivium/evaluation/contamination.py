"""Find the benchmark questions whose n-grams occur in the corpus, as MT-NLG and GPT-3 do."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from trivium.corpus.clean.tidy import tidy
from trivium.corpus.config import DecontaminationConfig
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.warm_up import compile_once
from trivium.corpus.publish.store import read_documents
from trivium.corpus.select.decontaminate import Keys, keys_of
from trivium.errors import DataError
from trivium.evaluation.statistics import share_of
from trivium.evaluation.tasks.task import Example
from trivium.untrusted import read_json

DOCUMENTS_PER_BATCH = 2000


class Overlap:
    """The benchmark n-grams that occur in a corpus."""

    def __init__(self, found: Iterable[str], config: DecontaminationConfig) -> None:
        self._found, self._config = frozenset(found), config

    def flags(self, examples: Sequence[Example]) -> list[bool]:
        """Return for each question whether any of its n-grams occurs in the corpus."""
        return [any(key in self._found for key in keys_of(text_looked_for(e), self._config)) for e in examples]


def text_looked_for(example: Example) -> str:
    """Return the text of a question to search for, normalised like the corpus."""
    return tidy(example.overlap or example.context)


def scan_corpus(documents: Path, examples: Iterable[Example], config: DecontaminationConfig) -> Overlap:
    """Search a folder of documents (`trivium-documents-1`) for the n-grams of these questions."""
    compile_once()
    keys = Keys({str(n): text_looked_for(e) for n, e in enumerate(examples)}, config)
    found: set[str] = set()
    rest = read_documents(documents, verify=False)
    while some := list(islice(rest, DOCUMENTS_PER_BATCH)):
        hits = keys.hits(texts_of([d.text for d in some]))
        found |= {keys.text_of(hit.key) for several in hits.values() for hit in several}
    return Overlap(found, config)


def seen_while_curating(decontamination: Path) -> frozenset[str]:
    """Return the ids of the evaluation passages that curation removed from the corpus. Raises DataError."""
    try:
        return frozenset(read_json(decontamination)["items_seen"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{decontamination} cannot be read ({error}); curate the corpus again") from None


def split_result(flags: Sequence[bool], correct: Sequence[bool], *, confidence: float) -> Mapping[str, Any]:
    """Return the accuracy on questions that occur in the corpus and on the others; None for an empty part."""
    parts: dict[str, Any] = {"n": sum(flags)}
    for name, wanted in (("in_corpus", True), ("clean", False)):
        some = [c for c, flag in zip(correct, flags, strict=True) if flag is wanted]
        parts[name] = share_of(some, confidence=confidence) if some else None
    return parts
