"""Rows of a benchmark from local files of JSON lines."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import DataError
from trivium.evaluation.tasks.definition import Definition


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
        read_json_lines(asked),
        None if shots is None else read_json_lines(shots),
        str(asked.relative_to(folder)),
        str((shots or asked).relative_to(folder)),
    )


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Objects, one a line; DataError names the line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text ({error}); download it again") from None
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {line[:60]!r} is not JSON ({error})") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: {line[:60]!r} is not an object of JSON")
        found.append(row)
    if not found:
        raise DataError(f"{path} has no rows; download it again, or leave the task out")
    return found


def _first(folder: Path, patterns: Sequence[str]) -> Path | None:
    for pattern in patterns:
        matches = sorted(folder.glob(pattern))
        if matches:
            return matches[0]
    return None
