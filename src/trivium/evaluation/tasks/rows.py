"""Rows of a benchmark from local files of JSON lines."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import DataError
from trivium.evaluation.tasks.definition import Definition
from trivium.jsonlines import read_rows
from trivium.units import plain

# A file that was cut: validation-00000-of-00003.jsonl.
_SHARD = re.compile(r"(?P<stem>.*?[-_.])(?P<number>\d+)(?P<of>[-_]of[-_](?P<total>\d+))(?P<suffix>\..+)")


class Rows(NamedTuple):
    """What is asked, where shots come from (None: from what is asked), and where each was found."""

    asked: list[dict[str, Any]]
    shots: list[dict[str, Any]] | None
    asked_from: str
    shots_from: str


def local_rows(of: Definition, folder: Path) -> Rows:
    """The rows of a benchmark under a folder; DataError when there are none."""
    if not folder.is_dir():
        raise DataError(
            f"--data {folder} is not a directory; name one with a folder of JSON lines for each task"
        )
    asked = _first(folder, of.data.asked)
    if asked is None:
        raise DataError(
            f"--data {folder} has no rows of task {of.name}; put JSON lines there as {' or '.join(of.data.asked)}"
        )
    shots = _first(folder, of.data.shots)
    return Rows(
        _rows_of(asked),
        None if shots is None else _rows_of(shots),
        _named(asked, folder),
        _named(shots or asked, folder),
    )


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file, one a line. Raises DataError, which names the line that is not one."""
    found: list[dict[str, Any]] = []
    for row, number in read_rows(path, remedy="download it again"):
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, line {number}: {plain(str(row)[:60])!r} is not a JSON object; download it again"
            )
        found.append(row)
    if not found:
        raise DataError(f"{path} has no rows; download it again, or leave the task out")
    return found


def _rows_of(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [row for file in files for row in read_json_lines(file)]


def _named(files: Sequence[Path], folder: Path) -> str:
    """The file below the folder, or the pattern of its shards; rows are counted over all of them."""
    first = files[0].relative_to(folder)
    shard = _SHARD.fullmatch(first.name)
    return str(first if shard is None else first.with_name(f"{shard['stem']}*{shard['of']}{shard['suffix']}"))


def _first(folder: Path, patterns: Sequence[str]) -> list[Path] | None:
    """The first file that a pattern finds; where that is a shard of several, all of them in their order."""
    for pattern in patterns:
        matches = sorted(folder.glob(pattern))
        if matches:
            return _shards(matches[0])
    return None


def _shards(first: Path) -> list[Path]:
    shard = _SHARD.fullmatch(first.name)
    if shard is None:
        return [first]
    found = {
        int(other["number"]): path
        for path in first.parent.iterdir()
        if (other := _SHARD.fullmatch(path.name))
        and all(other[part] == shard[part] for part in ("stem", "of", "suffix"))
    }
    begin, total = min(found), int(shard["total"])  # counted from 0, by some from 1
    missing = sorted({*range(begin, begin + total)} - found.keys())
    if missing or begin > 1 or len(found) != total:
        raise DataError(
            f"{first} is one of {total} shards, and {len(found)} are there"
            + (f" (number {', '.join(map(str, missing[:3]))} is missing)" if missing else "")
            + "; download all of them, none twice"
        )
    return [found[number] for number in sorted(found)]
