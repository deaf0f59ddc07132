"""Work on a stream of records, cut into parts: each is a folder that is there whole or not at all.

Where a part begins depends on the records only, so neither a kill nor the number of processes shows in any byte.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from trivium.corpus.engine.engine import Result
from trivium.corpus.job import lay_down
from trivium.provenance import write_json

PART_BYTES = 16 << 20  # of raw text in a part: what is lost when a process is killed, at most
COUNTS = "counts.json"


class Sized(Protocol):
    """A record that knows how much text it has."""

    @property
    def text_bytes(self) -> int: ...


Record = TypeVar("Record", bound=Sized)


class Piece(NamedTuple, Generic[Record]):
    """A part that is being written: its stream and name, its records, whether no more follow, the folder it fills."""

    stream: int
    name: str
    records: Sequence[Record]
    last: bool
    into: Path


def do_parts(
    folder: Path,
    number: int,
    read: Callable[[], Iterator[Record]],
    write: Callable[[Piece[Record]], dict[str, Any]],
    *,
    at_least: int = 0,
) -> Result:
    """Write the parts of a stream, by its number, that are not in `folder` yet.

    write: fills a part's folder, and returns what is to be told of it beside the number of its records. at_least:
    bytes in a part, where it is to have more than PART_BYTES.
    """
    done = finished_parts(folder, number)
    if not done or not done[-1]["last"]:
        records = read()
        for _ in islice(records, sum(part["raw"] for part in done)):
            pass  # reading is cheap beside what was done to these
        last, count = False, len(done)
        while not last:
            taken, last = take(records, max(PART_BYTES, at_least))
            name = part_name(number, count)

            def fill(into: Path, name: str = name, taken: list[Record] = taken, last: bool = last) -> None:
                told = write(Piece(number, name, taken, last, into))
                write_json(into / COUNTS, {**told, "raw": len(taken), "last": int(last)})

            lay_down(folder / name, fill)
            count += 1
    return {}


def take(records: Iterator[Record], size: int) -> tuple[list[Record], bool]:
    """The next records of at least so many bytes, and whether they are the last."""
    taken: list[Record] = []
    held = 0
    for record in records:
        taken.append(record)
        held += record.text_bytes
        if held >= size:
            return taken, False
    return taken, True


def finished_parts(folder: Path, number: int) -> list[dict[str, Any]]:
    """The counts of a stream's parts that are done, in order."""
    found: list[dict[str, Any]] = []
    while (part := folder / part_name(number, len(found))).is_dir():
        found.append(counts_of(part))
    return found


def part_names(folder: Path, streams: int) -> list[str]:
    """The names of all finished parts, in order."""
    return [
        part_name(number, place)
        for number in range(streams)
        for place in range(len(finished_parts(folder, number)))
    ]


def part_name(number: int, place: int) -> str:
    """The name of a stream's part."""
    return f"{number:05d}-{place:05d}"


def counts_of(part: Path) -> dict[str, Any]:
    """What was told of a finished part."""
    counts: dict[str, Any] = json.loads((part / COUNTS).read_text(encoding="utf-8"))
    return counts
