"""What was done, with which code, config and inputs: written next to every output; makes stages idempotent."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trivium import __version__
from trivium.errors import DataError

STAMP = "provenance.json"
_BLOCK_BYTES = 1 << 20


def unheard() -> None:
    """The sign of life that nobody waits for."""


def file_sha256(path: Path, alive: Callable[[], None] = unheard) -> str:
    """Hex sha256 of a file's bytes, read in blocks. alive: called after each."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            alive()
    return digest.hexdigest()


def fingerprint(value: Any) -> str:
    """A short stable hash of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def write_json(path: Path, value: Any) -> None:
    """Write plain data as readable JSON, replacing the file in one step and durably."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str)
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_directory(path.parent)


def read_described(path: Path, format: str, *, missing: str, remedy: str) -> dict[str, Any]:
    """A JSON object that names its format; DataError where there is none (`missing`), or it is not of that format."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(missing) from None
    except ValueError:
        raise DataError(f"{path} is not JSON: it was truncated or edited; {remedy}") from None
    named = found.get("format") if isinstance(found, dict) else type(found).__name__
    if not isinstance(found, dict) or named != format:
        raise DataError(f"{path} is not a {format} manifest (format: {named!r}); {remedy}")
    return found


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe(*, verb: str, config: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    """The stamp: verb, command, code, machine, config, and the hash of every input."""
    return {
        "verb": verb,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "trivium": __version__,
        "commit": code_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": dict(config),
        "inputs": dict(inputs),
        "key": stage_key(verb=verb, config=config, inputs=inputs),
    }


def stage_key(*, verb: str, config: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Equal keys mean: the same work on the same inputs, so it need not be done again."""
    return fingerprint({"verb": verb, "trivium": __version__, "config": dict(config), "inputs": dict(inputs)})


def stamp_hash(directory: Path) -> str:
    """The key of the stage that wrote `directory`; empty when it is not a finished output."""
    stamp = read_stamp(directory)
    return str(stamp.get("key", "")) if stamp else ""


def read_stamp(directory: Path) -> dict[str, Any] | None:
    """The stamp of a finished output, or None."""
    try:
        stamp = json.loads((directory / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


@contextmanager
def publishing(
    directory: Path, *, verb: str, config: Mapping[str, Any], inputs: Mapping[str, str]
) -> Iterator[Path]:
    """Write a stage's output under a temporary name; it takes its own name, stamped, only when complete.

    An interrupted stage leaves the previous output as it was.
    """
    partial = directory.with_name(f".{directory.name}.partial")
    old = directory.with_name(f".{directory.name}.old")
    if old.exists() and not directory.exists():
        old.rename(directory)  # a crash came between the two renames below
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        write_json(partial / STAMP, describe(verb=verb, config=config, inputs=inputs))
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    partial.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def code_commit() -> str:
    """The git commit this package runs from, with '+' when files were changed; 'unknown' outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        if Path(_git(here, "rev-parse", "--show-toplevel")) not in here.parents:
            return "unknown"
        changed = _git(here, "status", "--porcelain", "-uno")
        return _git(here, "rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(directory: Path, *words: str) -> str:
    command = ["git", "-C", str(directory), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
