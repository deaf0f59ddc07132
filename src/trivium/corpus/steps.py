"""Steps that keep, change or drop single documents, and the funnel that counts the result of each step."""

import gzip
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic_core import PydanticSerializationError, to_json

from trivium.corpus.config import CurateConfig
from trivium.corpus.document import Damage, Document, PassedOver
from trivium.corpus.read.files import relative_name
from trivium.finite import dumps

_BATCH_CHARACTERS = 1 << 20  # judged in one batch: enough for kernels, and small enough for the CPU's cache


class Keep(NamedTuple):
    """The document stays, with the step's changes to its text or metadata."""

    document: Document


@dataclass(frozen=True, slots=True)
class Drop:
    """The document is dropped.

    remedy: a setting of `curate` and a value under which no document is dropped for this reason; empty if there is
    none.
    """

    reason: str
    remedy: str = field(default="", compare=False)


Verdict = Keep | Drop
Other = TypeVar("Other")


class Step(NamedTuple):
    """A named function of single documents. `judge_all` gives the same verdicts on many documents at once, if that is
    faster."""

    name: str
    judge: Callable[[Document], Verdict]
    judge_all: Callable[[Sequence[Document]], list[Verdict]] | None = None

    def verdicts(self, documents: Sequence[Document]) -> list[Verdict]:
        """Return the verdict on each document."""
        return self.judge_all(documents) if self.judge_all else list(map(self.judge, documents))


def measured_step(
    name: str, measure: Callable[[Sequence[str]], Sequence[Any]], judge: Callable[[Document, Any], Verdict]
) -> Step:
    """Return the step that measures many texts at once, and judges each document by the figures of its text."""

    def judge_all(documents: Sequence[Document]) -> list[Verdict]:
        return list(map(judge, documents, measure([document.text for document in documents])))

    return Step(name, lambda document: judge_all([document])[0], judge_all)


class Reject(NamedTuple):
    """A dropped document, with the step and the reason."""

    document: Document
    step: str
    reason: str


@dataclass(slots=True)
class Tally:
    """The counts of one step: documents before it + added = documents + dropped + quarantined.

    For reading, input without damage has documents + passed_over records. dropped_bytes: of dropped text, by reason.
    remedies: for each reason the setting that changes it, if there is one.
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
        """Count a document that is dropped."""
        self.dropped[drop.reason] += 1
        self.dropped_bytes[drop.reason] += document.text_bytes
        if drop.remedy:
            self.remedies[drop.reason] = drop.remedy

    def keep(self, document: Document) -> None:
        """Count a document that stays."""
        self.documents += 1
        self.bytes += document.text_bytes

    def add(self, other: Mapping[str, Any]) -> None:
        """Add the `as_json` of another tally of this step."""
        for name in ("documents", "bytes", "added", "quarantined"):
            setattr(self, name, getattr(self, name) + other[name])
        for name in ("dropped", "dropped_bytes", "passed_over", "remedies"):
            getattr(self, name).update(other[name])

    def as_json(self) -> dict[str, Any]:
        """Return the entry of funnel.json."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {k: dict(sorted(v.items())) if isinstance(v, dict) else v for k, v in values.items()}


def summed(lists: Iterable[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Add up tallies, as JSON, that belong to the same step."""
    totals: dict[str, Tally] = {}
    for tally in (tally for tallies in lists for tally in tallies):
        totals.setdefault(tally["step"], Tally(tally["step"])).add(tally)
    return [total.as_json() for total in totals.values()]


class Steps:
    """A list of steps that documents go through, with a tally for each."""

    def __init__(self, steps: Iterable[Step], *, document_seconds: int = CurateConfig().document_seconds) -> None:
        """document_seconds: CPU time that each step may spend on one document."""
        self.steps = tuple(steps)
        self.document_seconds = document_seconds
        self.timed_out = 0  # documents that exceeded the limit
        self.tallies = tuple(Tally(step.name) for step in self.steps)

    def run(self, items: Iterable[Document | Other]) -> Iterator[Document | Reject | Other]:
        """Yield each document, in order, as the last step kept it, or as the reject of the first step that dropped it.

        Items that are not documents are yielded unchanged in their places.
        """
        batch: list[Document | Other] = []
        size = 0
        for item in items:
            batch.append(item)
            size += len(item.text) if isinstance(item, Document) else 0
            if size >= _BATCH_CHARACTERS:
                yield from self._judge(batch)
                batch, size = [], 0
        yield from self._judge(batch)

    def _judge(self, items: Sequence[Document | Other]) -> list[Document | Reject | Other]:
        results: list[Document | Reject | Other] = list(items)
        left = [(place, item) for place, item in enumerate(items) if isinstance(item, Document)]
        for step, tally in zip(self.steps, self.tallies, strict=True):
            verdicts = self._timed(step, [document for _, document in left])
            judged, left = left, []
            for (place, document), verdict in zip(judged, verdicts, strict=True):
                if isinstance(verdict, Drop):
                    tally.drop(document, verdict)
                    results[place] = Reject(document, step.name, verdict.reason)
                else:
                    tally.keep(verdict.document)
                    left.append((place, verdict.document))
        for place, document in left:
            results[place] = document
        return results

    def _timed(self, step: Step, documents: Sequence[Document]) -> list[Verdict]:
        """Return the verdicts of a step, and drop a document on which it spends more than `document_seconds`.

        Steps take linear time, so this is a second line of defence. The time of one document is measured only after a
        whole batch has exceeded the limit. It is CPU time of this thread, which other load does not change.
        """
        begin = time.thread_time()
        verdicts = step.verdicts(documents)
        if time.thread_time() - begin <= self.document_seconds:
            return verdicts
        if len(documents) > 1:
            return [verdict for document in documents for verdict in self._timed(step, [document])]
        self.timed_out += 1
        return [Drop(f"over {self.document_seconds} s of processor time", "document_seconds=1000000")]


class Judged(NamedTuple):
    """Documents and rejects, in the order of the records that were read.

    tallies: of reading and of each step so far. damage: the first reason why something could not be read.
    """

    items: list[Document | Reject]
    tallies: list[dict[str, Any]]
    damage: list[str]

    @property
    def kept(self) -> list[Document]:
        """The documents that no step dropped."""
        return [item for item in self.items if isinstance(item, Document)]

    @property
    def rejects(self) -> bytes:
        """The lines of the rejects in rejects.jsonl, compressed."""
        return packed_lines([reject_line(*item) for item in self.items if isinstance(item, Reject)])


def judged(records: Iterable[Document | Damage | PassedOver], root: Path | str, steps: Steps) -> Judged:
    """Count records and run the steps. Damage becomes a reject of `read`, with its path relative to `root`."""
    read = Tally("read")
    items: list[Document | Reject] = []
    damage: list[str] = []
    for record in records:
        if isinstance(record, Damage):
            where = relative_name(record.path, root)
            damage.append(f"{where}: {record.reason}")
            read.quarantined += record.records
            items.append(Reject(Document(where, "", ""), read.step, record.reason))
        elif isinstance(record, PassedOver):
            read.passed_over[record.kind] += 1
        else:
            read.keep(record)
            items.append(record)
    results = list(steps.run(items))
    return Judged(results, [tally.as_json() for tally in (read, *steps.tallies)], damage[:1])


def reject_line(document: Document, step: str, reason: str, **detail: Any) -> bytes:
    """Return the line of rejects.jsonl for a dropped document."""
    row = {"id": document.id, "source": document.source, "step": step, "reason": reason, **detail}
    row |= {"metadata": document.metadata, "text": document.text}
    try:
        return to_json(row, inf_nan_mode="null") + b"\n"
    except PydanticSerializationError:  # lone surrogates, which only the standard library writes
        return dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def packed_lines(lines: list[bytes]) -> bytes:
    """Compress lines to one gzip member, so that concatenated members are a file. No lines give no bytes."""
    return gzip.compress(b"".join(lines), compresslevel=1, mtime=0) if lines else b""


def noted(document: Document, **figures: Any) -> Document:
    """Return the document with figures added to its metadata."""
    return Document(document.id, document.text, document.source, {**document.metadata, **figures})


def figure_of(metadata: Mapping[str, Any], path: str) -> float:
    """Return the number at a path such as `quality.words`, or minus infinity if there is none."""
    value: Any = metadata
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return float_of(value) if isinstance(value, int | float) else float("-inf")


def float_of(number: int | float) -> float:
    """Convert a number to a float. Integers beyond the largest float become infinity."""
    try:
        return float(number)
    except OverflowError:
        return float("inf" if number > 0 else "-inf")
