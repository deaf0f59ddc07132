"""Records judged by steps: the documents that are kept, and the rejects as lines of a file."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from trivium.corpus.document import Document
from trivium.corpus.read.listing import relative_name
from trivium.corpus.read.quarantine import Damage, PassedOver
from trivium.corpus.steps import Reject, Steps, Tally

REJECTS = "rejects.gz"  # of a part


class Judged(NamedTuple):
    """What became of some records, in their order: a document, or the line of a reject.

    tallies: of reading and each step so far; damage: the first reason why something could not be read.
    """

    items: list[Document | bytes]
    tallies: list[dict[str, Any]]
    damage: list[str]

    @property
    def kept(self) -> list[Document]:
        """The documents that no step dropped."""
        return [item for item in self.items if isinstance(item, Document)]

    @property
    def rejects(self) -> bytes:
        """The lines of the rejects, packed."""
        return packed_lines([item for item in self.items if isinstance(item, bytes)])

    def by(self, steps: Steps) -> "Judged":
        """The same, its documents judged by further steps."""
        items = [_line_of(item) if isinstance(item, Reject) else item for item in steps.run(self.items)]
        return Judged(items, [*self.tallies, *(tally.as_json() for tally in steps.tallies)], self.damage)


def as_read(records: Sequence[Document | Damage | PassedOver], root: Path) -> Judged:
    """Records before any step, all counted; what could not be read becomes a reject, named below `root`."""
    read = Tally("read")
    items: list[Document | bytes] = []
    damage: list[str] = []
    for record in records:
        if isinstance(record, Damage):
            where = relative_name(Path(record.path), root)
            damage.append(f"{where}: {record.reason}")
            read.quarantined += record.records
            items.append(reject_line(Document(where, "", ""), read.step, record.reason))
        elif isinstance(record, PassedOver):
            read.passed_over[record.kind] += 1
        else:
            read.keep(record)
            items.append(record)
    return Judged(items, [read.as_json()], damage[:1])


def _line_of(reject: Reject) -> bytes:
    return reject_line(reject.document, reject.step, reject.reason)


def reject_line(document: Document, step: str, reason: str, **detail: Any) -> bytes:
    """A reject as a line of rejects.jsonl."""
    row = {"id": document.id, "source": document.source, "step": step, "reason": reason, **detail}
    row |= {"metadata": document.metadata, "text": document.text}
    try:
        return to_json(row) + b"\n"
    except PydanticSerializationError:  # half characters, which only the standard library writes
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def packed_lines(lines: list[bytes]) -> bytes:
    """Lines as one gzip member, so that members make a file when they are joined; nothing for no line."""
    return gzip.compress(b"".join(lines), compresslevel=1, mtime=0) if lines else b""
