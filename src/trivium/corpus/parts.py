"""Work on a stream of records, cut into parts: each is a folder that is there whole or not at all.

Where a part begins depends on the records only, so neither a kill nor the number of processes shows in any byte.
"""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from trivium.corpus.engine import Result
from trivium.corpus.job import lay_down
from trivium.provenance import write_json

PART_BYTES = 16 << 20  # of raw text in a part: what is lost when a process is killed, at most
COUNTS = "counts.json"
_WITHOUT_TEXT_BYTES = 256  # of memory that a record without text takes: a file may hold millions of them


class Sized(Protocol):
    """A record that knows how much text it has."""

    @property
    def text_bytes(self) -> int: ...


Record = TypeVar("Record", bound=Sized)
Records = TypeVar("Records")


class Stretch(NamedTuple, Generic[Records]):
    """The records of one part, or what was made of them; how many they were; whether no more follow."""

    records: Records
    raw: int
    last: bool


class Piece(NamedTuple, Generic[Records]):
    """A part that is being written: its stream and name, its records, whether no more follow, the folder it fills."""

    stream: int
    name: str
    records: Records
    last: bool
    into: Path


# The stretch of a stream at a place among its parts, before which there are so many records; places rise.
Take = Callable[[int, int], Stretch[Records]]


def do_parts(
    folder: Path,
    number: int,
    take: Take[Records],
    write: Callable[[Piece[Records]], dict[str, Any]],
) -> Result:
    """Write the parts of a stream, by its number, that are not in `folder` yet.

    write: fills a part's folder, and returns what is to be told of it beside the number of its records.
    """
    done = finished_parts(folder, number)
    before, count, last = sum(part["raw"] for part in done), len(done), bool(done and done[-1]["last"])
    while not last:
        name = part_name(number, count)
        stretch = take(count, before)

        def fill(into: Path, name: str = name, stretch: Stretch[Records] = stretch) -> None:
            told = write(Piece(number, name, stretch.records, stretch.last, into))
            write_json(into / COUNTS, {**told, "raw": stretch.raw, "last": int(stretch.last)})

        lay_down(folder / name, fill)
        before, count, last = before + stretch.raw, count + 1, stretch.last
    return {}


def stretches(read: Callable[[], Iterator[Record]], *, at_least: int = 0) -> Take[list[Record]]:
    """Takes stretches of a stream of records, which is opened when one is asked for.

    at_least: bytes in a part, where it is to have more than PART_BYTES.
    """
    opened: list[Iterator[Record]] = []
    passed = 0

    def take(place: int, before: int) -> Stretch[list[Record]]:
        nonlocal passed
        if not opened:
            opened.append(read())
        for _ in islice(opened[0], before - passed):
            pass  # reading is cheap beside what was done to these
        taken, last = _taken(opened[0], max(PART_BYTES, at_least))
        passed = before + len(taken)
        return Stretch(taken, len(taken), last)

    return take


def _taken(records: Iterator[Record], size: int) -> tuple[list[Record], bool]:
    """The next records of at least so many bytes, and whether they are the last."""
    taken: list[Record] = []
    held = 0
    for record in records:
        taken.append(record)
        held += record.text_bytes or _WITHOUT_TEXT_BYTES
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


def place_of(name: str) -> int:
    """The place of a part in its stream, by its name."""
    return int(name.rpartition("-")[2])


def counts_of(part: Path) -> dict[str, Any]:
    """What was told of a finished part."""
    counts: dict[str, Any] = json.loads((part / COUNTS).read_text(encoding="utf-8"))
    return counts
