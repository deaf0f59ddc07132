"""Read the rows of a benchmark from local files of JSON lines, or from the Hugging Face Hub (extra `eval`)."""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import DataError, MachineError
from trivium.evaluation.tasks.definition import Definition
from trivium.jsonlines import read_rows
from trivium.units import plain

# A shard of a file, such as validation-00000-of-00003.jsonl.
_SHARD = re.compile(r"(?P<stem>.*?[-_.])(?P<number>\d+)(?P<of>[-_]of[-_](?P<total>\d+))(?P<suffix>\..+)")


class Rows(NamedTuple):
    """The rows to ask, the rows for shots (None: the same rows), and the source of each."""

    asked: list[dict[str, Any]]
    shots: list[dict[str, Any]] | None
    asked_from: str
    shots_from: str


def hub_rows(of: Definition) -> Rows:
    """Return the rows of a benchmark from the Hub. Raises DataError, or MachineError without library or connection."""
    shots = None if of.hub.shots is None else _split(of, of.hub.shots)
    sources = (f"{of.hub.path}, {split}" for split in (of.hub.asked, of.hub.shots or of.hub.asked))
    return Rows(_split(of, of.hub.asked), shots, *sources)


def _split(of: Definition, split: str) -> list[dict[str, Any]]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise MachineError(
            f"rows of the Hub need datasets ({error}); install it with `pip install -e '.[eval]'`, or give local rows "
            "with --data DIR"
        ) from None
    try:
        return [dict(row) for row in datasets.load_dataset(of.hub.path, of.hub.name, split=split)]
    except ConnectionError as error:
        raise MachineError(
            f"the Hub cannot be reached for task {of.name} ({type(error).__name__}); give local rows: --data DIR, "
            "or for a training training.evaluation.data"
        ) from None
    except Exception as error:  # the library's exceptions have no common base class
        raise DataError(
            f"the Hub did not give {of.hub.path} ({split}) for task {of.name}: {type(error).__name__}: {error}; "
            "give local rows with --data DIR"
        ) from None


def local_rows(of: Definition, folder: Path) -> Rows:
    """Return the rows of a benchmark under a folder. Raises DataError if there are none."""
    if not folder.is_dir():
        raise DataError(f"--data {folder} is not a directory; name one with a folder of JSON lines for each task")
    asked, shots = _first(folder, of.data.asked), _first(folder, of.data.shots)
    if not asked:
        raise DataError(
            f"--data {folder} has no rows of task {of.name}; put JSON lines there as {' or '.join(of.data.asked)}"
        )
    every = ([row for file in files for row in read_json_lines(file)] for files in (asked, shots))
    return Rows(next(every), next(every) or None, _named(asked, folder), _named(shots or asked, folder))


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file, one per line. Raises DataError, which names the line that is not an object."""
    found: list[dict[str, Any]] = []
    for row, number in read_rows(path, remedy="download it again"):
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: {plain(str(row)[:60])!r} is not a JSON object; download it again")
        found.append(row)
    if not found:
        raise DataError(f"{path} has no rows; download it again, or leave the task out")
    return found


def _named(files: Sequence[Path], folder: Path) -> str:
    """Return the path below the folder, or the pattern of the shards. Rows are numbered over all shards."""
    first = files[0].relative_to(folder)
    shard = _SHARD.fullmatch(first.name)
    return str(first if shard is None else first.with_name(f"{shard['stem']}*{shard['of']}{shard['suffix']}"))


def _first(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the first file that a pattern matches, all shards in order if it is one of several, or []."""
    first = next((path for pattern in patterns for path in sorted(folder.glob(pattern))), None)
    shard = first and _SHARD.fullmatch(first.name)
    if first is None or shard is None:
        return [] if first is None else [first]
    found = {
        int(other["number"]): path
        for path in first.parent.iterdir()
        if (other := _SHARD.fullmatch(path.name))
        and all(other[part] == shard[part] for part in ("stem", "of", "suffix"))
    }
    begin, total = min(found), int(shard["total"])  # numbered from 0, or by some publishers from 1
    missing = sorted({*range(begin, begin + total)} - found.keys())
    if missing or begin > 1 or len(found) != total:
        raise DataError(
            f"{first} is one of {total} shards, and {len(found)} files were found"
            + (f" (number {', '.join(map(str, missing[:3]))} is missing)" if missing else "")
            + "; download all of them, none twice"
        )
    return [found[number] for number in sorted(found)]
