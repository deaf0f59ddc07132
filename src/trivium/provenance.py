"""What was done, with which code, config and inputs: written next to every output; makes stages idempotent."""

import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trivium import __version__
from trivium.errors import ConfigError, DataError, MachineError
from trivium.finite import dumps
from trivium.redact import redacted
from trivium.untrusted import open_regular, read_json

STAMP = "provenance.json"
JOB = "job.json"  # in a folder of pieces, or in the folder of each job in it: what they are pieces of
# What lies among pieces, as `fingerprint` and `write_whole` name it.
_OF_A_JOB = re.compile(r"[0-9a-f]{16}|\.job\.json\.\d+\.partial")
LOCK = ".lock"  # in an output that is being written
WITHOUT_LOCKS = (
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.ENOLCK,
)  # Lustre mounted without flock, NFS without lockd
_BLOCK_BYTES = 1 << 20


def unheard() -> None:
    """The sign of life that nobody waits for."""


def file_sha256(path: Path, alive: Callable[[], None] = unheard) -> str:
    """Hex sha256 of a file's bytes, read in blocks. alive: called after each."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            alive()
    return digest.hexdigest()


def fingerprint(value: Any) -> str:
    """A short stable hash of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def write_json(path: Path, value: Any) -> None:
    """Write plain data as readable JSON, replacing the file in one step and durably. A number that is not finite is
    written as null."""
    # A file may have a name that is no UTF-8; its half characters are written as JSON's escapes, and read as such.
    write_whole(path, f"{dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str)}\n")


def write_whole(path: Path, text: str) -> None:
    """Write a text, half characters as escapes, replacing the file in one step and durably."""
    if not path.name:  # "." or "/", of which there is no name beside
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    partial = path.with_name(
        f".{path.name}.{os.getpid()}.partial"
    )  # stations side by side write the same files
    try:
        partial.unlink(
            missing_ok=True
        )  # a run directory of others may have a link there, to any file of this user
        with open(partial, "x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)  # what a full disk took of it
    sync_directory(path.parent)


def read_described(path: Path, format: str, *, missing: str, remedy: str) -> dict[str, Any]:
    """A JSON object that names its format; DataError where there is none (`missing`), or it is not of that format."""
    try:
        found = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(missing) from None
    except (ValueError, RecursionError):
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
        "command": redacted([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "trivium": __version__,
        "commit": code_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": redacted(config),
        "inputs": redacted(inputs),
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
        stamp = read_json(directory / STAMP)
    except (OSError, ValueError, RecursionError):
        return None
    return stamp if isinstance(stamp, dict) else None


def partial_of(path: Path) -> Path:
    """Where a file is written before it takes its name. Nothing is there: what a crash left is gone, and a link, of
    which what it leads to would be overwritten."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    return partial


def sync_tree(directory: Path) -> None:
    """Wait until all files below a directory, and their names, are on the disk; what links lead to is not ours."""
    for folder, _, names in os.walk(directory):
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                sync_directory(path)  # a file is waited for in the same way
        sync_directory(Path(folder))


def work_of(directory: Path) -> Path:
    """Where the finished pieces of an output lie until it is there: a command that was killed goes on with them."""
    return directory.with_name(f".{directory.name}.work")


def _doomed(folder: Path) -> Path:
    """The name that a folder of pieces has while it is deleted."""
    return folder.with_name(f"{folder.name}.old")


def _holds_pieces(folder: Path) -> bool:
    """Whether trivium left all that is in a folder: it describes its job, or has folders of jobs alone, named by their
    hashes; or nothing yet, or a description that was never finished."""
    try:
        if (folder / JOB).is_file():
            return "trivium" in read_json(folder / JOB)
        return all(_OF_A_JOB.fullmatch(path.name) for path in folder.iterdir())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def refuse_others_pieces(folder: Path) -> None:
    """MachineError where something is in the place of a folder of pieces that trivium did not leave there: `discard`
    leaves it alone, and what is ours would come among it."""
    for place in (folder, _doomed(folder)):
        if os.path.lexists(place) and not _holds_pieces(place):
            raise MachineError(
                f"{place} is where finished pieces lie until the output is there, and holds what trivium did not "
                f"leave; move it elsewhere, or write to another place"
            )


def discard(folder: Path) -> None:
    """Delete a folder of pieces, if it is there, and nothing that trivium did not leave. It loses its name first: a
    kill leaves none that is half deleted."""
    old = _doomed(folder)
    _delete_pieces(old)
    with suppress(OSError):
        if _holds_pieces(folder) and not os.path.lexists(old):
            folder.rename(old)
    _delete_pieces(old)


def _delete_pieces(old: Path) -> None:
    if _holds_pieces(old):
        _delete(old, last=JOB)


def _delete(folder: Path, *, last: str) -> None:
    """Delete a folder of ours; what tells that it is goes last, so that also half of it is known by that."""
    with suppress(OSError):
        if folder.is_symlink():  # what it leads to has another name, and is not ours to look for
            folder.unlink()
            return
        for path in sorted(folder.iterdir(), key=lambda path: path.name == last):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        folder.rmdir()


def _refuse_others(folder: Path, mark: str, directory: Path) -> None:
    """MachineError where a name that an output needs beside it is of a folder that trivium did not leave: its mark is
    not in it."""
    # Another process may make or publish the folder meanwhile, so that what was seen first is looked at again.
    is_ours = (folder / mark).is_file() or _is_empty(folder) or (folder / mark).is_file()
    if not is_ours and os.path.lexists(folder):
        raise MachineError(
            f"{folder} is a name that {directory} needs beside it while it is written, and holds what trivium did not "
            f"leave; move it elsewhere, or write to another place"
        )


def _is_empty(folder: Path) -> bool:
    try:
        return folder.is_dir() and not any(folder.iterdir())
    except FileNotFoundError:  # it has just gone
        return True


@contextmanager
def publishing(
    directory: Path,
    *,
    verb: str,
    config: Mapping[str, Any],
    inputs: Mapping[str, str],
    keep: Path | None = None,
) -> Iterator[Path]:
    """Write a stage's output under a temporary name; it takes its own name, stamped, only when complete and durable.
    Then the pieces that it was made of (`work_of`) are deleted, which are known by what is in them. keep: where the
    output is kept whose place it takes; otherwise that is deleted.

    An interrupted stage, or a host that loses power, leaves the previous output as it was. MachineError where another
    process is writing it: two would make one output of halves.
    """
    partial = directory.with_name(f".{directory.name}.partial")
    old = directory.with_name(f".{directory.name}.old")
    _refuse_others(old, STAMP, directory)
    with _alone_in(partial, directory):
        if old.exists() and not directory.exists():
            old.rename(directory)  # a crash came between the two renames below
        try:
            yield partial
            write_json(partial / STAMP, describe(verb=verb, config=config, inputs=inputs))
            sync_tree(partial)
        except BaseException:
            _delete(partial, last=LOCK)
            raise
        _delete(old, last=STAMP)
        if directory.exists():
            directory.rename(keep or old)
        partial.rename(directory)
        (directory / LOCK).unlink()  # only now: nobody else may take the temporary name before it is gone
        sync_directory(directory.parent)
        discard(work_of(directory))
        _delete(old, last=STAMP)


@contextmanager
def publishing_new(directory: Path, remedy: str) -> Iterator[Path]:
    """Write a new directory under a temporary name; it takes its own name only when complete and durable.

    Raises ConfigError where the name is taken, by then too, and MachineError where another process is writing it: of
    two that write one name, one wins, and the other is refused. remedy: how the user has it written elsewhere.
    """
    partial = directory.with_name(f".{directory.name}.partial")
    with _alone_in(partial, directory):
        try:
            if os.path.lexists(directory):  # asked while nobody else can publish it
                raise ConfigError(f"{directory} exists already; {remedy}")
            yield partial
            sync_tree(partial)
            partial.rename(directory)
        except BaseException:
            _delete(partial, last=LOCK)
            raise
        (directory / LOCK).unlink()  # only now: nobody else may take the temporary name before it is gone
        sync_directory(directory.parent)


@contextmanager
def _alone_in(partial: Path, directory: Path) -> Iterator[None]:
    """Inside, this process and those it forks alone write what becomes the directory, in a folder that is empty at
    first; the kernel takes the lock back from the dead."""
    if partial.is_symlink():  # all that it leads to would be deleted
        raise MachineError(
            f"{partial} is a link to {partial.readlink()}, and trivium makes none there; delete the link, if the run "
            "directory is to be trusted at all"
        )
    _refuse_others(partial, LOCK, directory)
    held = MachineError(
        f"{directory} is being written by another process; wait until it ends, or write to another place"
    )
    try:
        partial.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(partial / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except (FileNotFoundError, FileExistsError):
        # The other has just published the folder, or given it up. Where that happens inside mkdir(), the folder exists
        # when it is to be made, and is gone when it is looked at.
        raise held from None
    try:
        if not _locks(descriptor) or not _is_at(descriptor, partial / LOCK):
            raise held
        for path in partial.iterdir():  # what a crash left
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
        yield
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _locks(descriptor: int) -> bool:
    """Whether no other process has the lock of an open file; where the file system has none, nobody has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
    return True


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
