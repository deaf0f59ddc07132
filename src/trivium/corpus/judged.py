"""Records judged by steps: the documents that are kept, and the rejects as lines of a file."""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from trivium.corpus.document import Document
from trivium.corpus.quarantine import Damage
from trivium.corpus.steps import Reject, Steps, Tally

REJECTS = "rejects.gz"  # of a part


class Judged(NamedTuple):
    """What became of some records. rejects: packed; tallies: of reading and each step; damage: its first reason."""

    kept: list[Document]
    rejects: bytes
    tallies: list[dict[str, Any]]
    damage: list[str]


def judged(records: Iterable[Document | Damage], steps: Steps, root: Path) -> Judged:
    """Judge the documents among records; what could not be read is counted and becomes a reject, named below `root`."""
    read, lines = Tally("read"), list[bytes]()
    damage: list[str] = []
    kept: list[Document] = []

    def sound() -> Iterator[Document]:
        for item in records:
            if isinstance(item, Damage):
                where = Path(item.path).relative_to(root).as_posix()
                damage.append(f"{where}: {item.reason}")
                read.quarantined += item.records
                lines.append(reject_line(Document(where, "", ""), read.step, item.reason))
            else:
                read.keep(item)
                yield item

    for result in steps.run(sound()):
        if isinstance(result, Reject):
            lines.append(reject_line(result.document, result.step, result.reason))
        else:
            kept.append(result)
    tallies = [tally.as_json() for tally in (read, *steps.tallies)]
    return Judged(kept, packed_lines(lines), tallies, damage[:1])


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
