"""A step judges one document: keep it (perhaps changed) or drop it with a reason; a funnel counts them all."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from trivium.corpus.document import Document


class Keep(NamedTuple):
    """The document goes on, with what the step wrote into its text or metadata."""

    document: Document


class Drop(NamedTuple):
    """The document ends here."""

    reason: str


Verdict = Keep | Drop


class Step(NamedTuple):
    """A named judgement of single documents."""

    name: str
    judge: Callable[[Document], Verdict]


class Reject(NamedTuple):
    """A dropped document, with the step and the reason."""

    document: Document
    step: str
    reason: str


@dataclass(slots=True)
class Tally:
    """What one step did. Law: documents that came in + added = documents + dropped + quarantined."""

    step: str
    documents: int = 0
    bytes: int = 0
    added: int = 0
    quarantined: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def keep(self, document: Document) -> None:
        """Count a document that goes on."""
        self.documents += 1
        self.bytes += document.text_bytes

    def as_json(self) -> dict[str, Any]:
        """Plain data, as it stands in funnel.json."""
        return {
            "step": self.step,
            "documents": self.documents,
            "bytes": self.bytes,
            "added": self.added,
            "quarantined": self.quarantined,
            "dropped": dict(sorted(self.dropped.items())),
        }


class Steps:
    """A list of steps run document by document, with a tally each."""

    def __init__(self, steps: Iterable[Step]) -> None:
        """`steps` in the order they judge."""
        self.steps = tuple(steps)
        self.tallies = tuple(Tally(step.name) for step in self.steps)

    def run(self, documents: Iterable[Document]) -> Iterator[Document | Reject]:
        """Each document once, as kept by every step or as the reject of the first step that drops it."""
        for document in documents:
            yield self._judge(document)

    def _judge(self, document: Document) -> Document | Reject:
        current = document
        for step, tally in zip(self.steps, self.tallies, strict=True):
            verdict = step.judge(current)
            if isinstance(verdict, Drop):
                tally.dropped[verdict.reason] += 1
                return Reject(current, step.name, verdict.reason)
            current = verdict.document
            tally.keep(current)
        return current


def noted(document: Document, **figures: Any) -> Document:
    """The document with figures added to its metadata."""
    return replace(document, metadata={**document.metadata, **figures})


def figure_of(metadata: Mapping[str, Any], path: str) -> float:
    """The number at a path of names with dots between them; the lowest of all numbers when there is none."""
    found: Any = metadata
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) else float("-inf")


def balances(funnel: list[dict[str, Any]]) -> bool:
    """Whether every step's documents are those of the step before, plus added, minus dropped and quarantined."""
    pairs = pairwise(funnel)
    return all(
        before["documents"] + here["added"]
        == here["documents"] + sum(here["dropped"].values()) + here["quarantined"]
        for before, here in pairs
    )
