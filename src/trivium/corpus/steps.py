"""A step judges one document: keep it (perhaps changed) or drop it with a reason; a funnel counts them all."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from trivium.corpus.config import CurateConfig
from trivium.corpus.document import Document
from trivium.corpus.measure import Ask, Found, Measure, measured

_BATCH_CHARACTERS = 1 << 20  # judged at once: enough for kernels, little enough for the processor's cache
_DOCUMENT_SECONDS = CurateConfig().document_seconds


class Keep(NamedTuple):
    """The document goes on, with what the step wrote into its text or metadata."""

    document: Document


@dataclass(frozen=True, slots=True)
class Drop:
    """The document ends here.

    remedy: the setting of `curate`, and a value, under which no document is dropped for this reason; empty if there is
    none.
    """

    reason: str
    remedy: str = field(default="", compare=False)


Verdict = Keep | Drop
Other = TypeVar("Other")


class Step(NamedTuple):
    """A named judgement of single documents; `judge_all` says the same of many at once, where that is faster.

    measure, by_figures: where the verdict follows from figures of the text, what these are, and the verdict by them.
    """

    name: str
    judge: Callable[[Document], Verdict]
    judge_all: Callable[[Sequence[Document]], list[Verdict]] | None = None
    measure: Measure | None = None
    by_figures: Callable[[Document, Found], Verdict] | None = None

    def verdicts(self, documents: Sequence[Document]) -> list[Verdict]:
        """The verdict on each document."""
        return self.judge_all(documents) if self.judge_all else list(map(self.judge, documents))


def batched_step(name: str, judge_all: Callable[[Sequence[Document]], list[Verdict]]) -> Step:
    """A step that is known by what it says of many documents."""
    return Step(name, lambda document: judge_all([document])[0], judge_all)


def measured_step(
    name: str, measure: Measure, by_figures: Callable[[Document, Found], Verdict], ask: Ask = measured
) -> Step:
    """A step that judges by the figures of a text, which it asks of `ask`."""

    def judge_all(documents: Sequence[Document]) -> list[Verdict]:
        return list(map(by_figures, documents, ask(measure, [document.text for document in documents])))

    return Step(name, lambda document: judge_all([document])[0], judge_all, measure, by_figures)


def asking(step: Step, ask: Ask) -> Step:
    """The same step, if it judges by figures with these asked of `ask`."""
    if step.measure is None or step.by_figures is None:
        return step
    return measured_step(step.name, step.measure, step.by_figures, ask)


class Reject(NamedTuple):
    """A dropped document, with the step and the reason."""

    document: Document
    step: str
    reason: str


@dataclass(slots=True)
class Tally:
    """What one step did. Law: documents that came in + added = documents + dropped + quarantined.

    Of reading: records that were read = documents + passed_over + quarantined. dropped_bytes: the text of what was
    dropped, by reason. remedies: for each reason the setting that changes it, if there is one.
    """

    step: str
    documents: int = 0
    bytes: int = 0
    added: int = 0
    quarantined: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_bytes: Counter[str] = field(default_factory=Counter)
    passed_over: Counter[str] = field(default_factory=Counter)
    remedies: dict[str, str] = field(default_factory=dict)

    def drop(self, document: Document, drop: Drop) -> None:
        """Count a document that ends here."""
        self.dropped[drop.reason] += 1
        self.dropped_bytes[drop.reason] += document.text_bytes
        if drop.remedy:
            self.remedies[drop.reason] = drop.remedy

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
            "dropped_bytes": dict(sorted(self.dropped_bytes.items())),
            "passed_over": dict(sorted(self.passed_over.items())),
            "remedies": dict(sorted(self.remedies.items())),
        }


class Steps:
    """A list of steps run document by document, with a tally each."""

    def __init__(self, steps: Iterable[Step], *, document_seconds: int = _DOCUMENT_SECONDS) -> None:
        """`steps` in the order they judge. document_seconds: of processor time that each may take for one document."""
        self.steps = tuple(steps)
        self.document_seconds = document_seconds
        self.timed_out = 0  # documents dropped because of it
        self.tallies = tuple(Tally(step.name) for step in self.steps)

    def run(self, items: Iterable[Document | Other]) -> Iterator[Document | Reject | Other]:
        """Each document once, as kept by every step or as the reject of the first step that drops it, in order.

        What is no document stays where it is among them.
        """
        held: list[Document | Other] = []
        size = 0
        for item in items:
            held.append(item)
            size += len(item.text) if isinstance(item, Document) else 0
            if size >= _BATCH_CHARACTERS:
                yield from self._judge(held)
                held, size = [], 0
        yield from self._judge(held)

    def _judge(self, items: Sequence[Document | Other]) -> list[Document | Reject | Other]:
        results: list[Document | Reject | Other] = list(items)
        numbered = [(place, item) for place, item in enumerate(items) if isinstance(item, Document)]
        places, current = [place for place, _ in numbered], [document for _, document in numbered]
        for step, tally in zip(self.steps, self.tallies, strict=True):
            left: list[tuple[int, Document]] = []
            verdicts = self._timed(step, current)
            for place, document, verdict in zip(places, current, verdicts, strict=True):
                if isinstance(verdict, Drop):
                    tally.drop(document, verdict)
                    results[place] = Reject(document, step.name, verdict.reason)
                else:
                    tally.keep(verdict.document)
                    left.append((place, verdict.document))
            places, current = [place for place, _ in left], [document for _, document in left]
        for place, document in zip(places, current, strict=True):
            results[place] = document
        return results

    def _timed(self, step: Step, documents: Sequence[Document]) -> list[Verdict]:
        """The verdicts of a step, where a document that takes it too long is dropped.

        Steps are linear, so this is a second line of defence. The time of one document is measured only after a whole
        batch exceeded the bound. It is processor time of this thread: other load on the machine does not count.
        """
        verdicts, seconds = _with_seconds(step, documents)
        if seconds <= self.document_seconds:
            return verdicts
        if len(documents) > 1:
            return [verdict for document in documents for verdict in self._timed(step, [document])]
        self.timed_out += 1
        return [Drop(f"over {self.document_seconds} s of processor time", "document_seconds=1000000")]


def _with_seconds(step: Step, documents: Sequence[Document]) -> tuple[list[Verdict], float]:
    begin = time.thread_time()
    return step.verdicts(documents), time.thread_time() - begin


def noted(document: Document, **figures: Any) -> Document:
    """The document with figures added to its metadata."""
    return Document(document.id, document.text, document.source, {**document.metadata, **figures})


def figure_of(metadata: Mapping[str, Any], path: str) -> float:
    """The number at a path of names with dots between them; the lowest of all numbers when there is none."""
    found: Any = metadata
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return float_of(found) if isinstance(found, int | float) else float("-inf")


def float_of(number: int | float) -> float:
    """A number as a float; infinity for a whole one beyond the largest."""
    try:
        return float(number)
    except OverflowError:
        return float("inf" if number > 0 else "-inf")
