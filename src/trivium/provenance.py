"""Provenance stamps (code, config and inputs) of every output, and atomic writing of outputs and their pieces."""

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
JOB = "job.json"  # in a folder of pieces, or in each job's folder in it: describes the job
# Names in a folder of pieces, as `fingerprint` and `write_whole` create them.
_OF_A_JOB = re.compile(r"[0-9a-f]{16}|\.job\.json\.\d+\.partial")
LOCK = ".lock"  # in an output that is being written
WITHOUT_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # on Lustre mounted without flock, or NFS without lockd
_BLOCK_BYTES = 1 << 20


def unheard() -> None:
    """No-op heartbeat callback, for callers without a watchdog."""


def file_sha256(path: Path, alive: Callable[[], None] = unheard) -> str:
    """Return the sha256 of a file as hex. alive: called after every block."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            alive()
    return digest.hexdigest()


def fingerprint(value: Any) -> str:
    """Return a short, stable hash of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def write_json(path: Path, value: Any) -> None:
    """Write plain data as readable JSON, atomically and durably. Numbers that are not finite become null."""
    # File names that are not UTF-8 contain lone surrogates, which are written and read as JSON escapes.
    write_whole(path, f"{dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str)}\n")


def write_whole(path: Path, text: str) -> None:
    """Write a text atomically and durably, with lone surrogates as escapes. Raises IsADirectoryError for "." or "/"."""
    if not path.name:  # "." and "/" have no sibling
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")  # stages that run concurrently write the same files
    try:
        partial.unlink(missing_ok=True)  # a foreign run directory may contain a link to any of the user's files
        with open(partial, "x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)  # left by a full disk
    sync_directory(path.parent)


def read_described(path: Path, format: str, *, missing: str, remedy: str) -> dict[str, Any]:
    """Read a JSON object with this `format`. Raises DataError if it is absent (message `missing`) or has another
    format."""
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
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe(*, verb: str, config: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the stamp of an output: command, code, machine, config, and the hash of every input."""
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
    """Return a key that is equal for equal work on equal inputs, which need not be repeated."""
    return fingerprint({"verb": verb, "trivium": __version__, "config": dict(config), "inputs": dict(inputs)})


def stamp_hash(directory: Path) -> str:
    """Return the key of the stage that wrote `directory`, or "" if it is not a finished output."""
    stamp = read_stamp(directory)
    return str(stamp.get("key", "")) if stamp else ""


def read_stamp(directory: Path) -> dict[str, Any] | None:
    """Return the stamp of a finished output, or None."""
    try:
        stamp = read_json(directory / STAMP)
    except (OSError, ValueError, RecursionError):
        return None
    return stamp if isinstance(stamp, dict) else None


def partial_of(path: Path) -> Path:
    """Return the temporary path of a file, after removing what is there. A link would be followed and its target
    overwritten."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    return partial


def sync_tree(directory: Path) -> None:
    """Wait until all files below a directory and their names are on disk. Targets of links are skipped."""
    for folder, _, names in os.walk(directory):
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                sync_directory(path)  # files are synchronised like directories
        sync_directory(Path(folder))


def work_of(directory: Path) -> Path:
    """Return the folder of an output's finished pieces, from which an interrupted command resumes."""
    return directory.with_name(f".{directory.name}.work")


def _doomed(folder: Path) -> Path:
    """Return the name that a folder of pieces has while it is deleted."""
    return folder.with_name(f"{folder.name}.old")


def _holds_pieces(folder: Path) -> bool:
    """Whether trivium created everything in a folder.

    The folder contains a job description, only folders of jobs named by hashes, an unfinished description, or
    nothing.
    """
    try:
        if (folder / JOB).is_file():
            return "trivium" in read_json(folder / JOB)
        return all(_OF_A_JOB.fullmatch(path.name) for path in folder.iterdir())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def refuse_others_pieces(folder: Path) -> None:
    """Raise MachineError if a folder of pieces exists that trivium did not create. `discard` would not delete it,
    and new pieces would be mixed with its files."""
    for place in (folder, _doomed(folder)):
        if os.path.lexists(place) and not _holds_pieces(place):
            raise MachineError(
                f"{place} is the folder for finished pieces of an output, but contains files that trivium did not "
                f"create; move it, or write the output elsewhere"
            )


def discard(folder: Path) -> None:
    """Delete a folder of pieces if trivium created it. It is renamed first, so that a kill leaves no incomplete
    folder under its name."""
    old = _doomed(folder)
    finish_discarding(folder)
    with suppress(OSError):
        if _holds_pieces(folder) and not os.path.lexists(old):
            folder.rename(old)
    finish_discarding(folder)


def finish_discarding(folder: Path) -> None:
    """Delete what a killed `discard` of this folder has left."""
    old = _doomed(folder)
    if _holds_pieces(old):
        _delete(old, last=JOB)


def _delete(folder: Path, *, last: str) -> None:
    """Delete a folder created by trivium. `last` identifies it and is deleted last, so that an incomplete one is
    still recognised."""
    with suppress(OSError):
        if folder.is_symlink():  # the link's target is not trivium's
            folder.unlink()
            return
        for path in sorted(folder.iterdir(), key=lambda path: path.name == last):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        folder.rmdir()


def _refuse_others(folder: Path, mark: str, directory: Path) -> None:
    """Raise MachineError if a name next to an output is taken by a folder without `mark`, which trivium did not
    create."""
    # Another process may create or publish the folder meanwhile, so the first condition is checked again.
    is_ours = (folder / mark).is_file() or _is_empty(folder) or (folder / mark).is_file()
    if not is_ours and os.path.lexists(folder):
        raise MachineError(
            f"{folder} is needed while {directory} is written, but contains files that trivium did not "
            f"create; move it, or write the output elsewhere"
        )


def _is_empty(folder: Path) -> bool:
    try:
        return folder.is_dir() and not any(folder.iterdir())
    except FileNotFoundError:  # it was just removed
        return True


@contextmanager
def publishing(
    directory: Path, *, verb: str, config: Mapping[str, Any], inputs: Mapping[str, str], keep: Path | None = None
) -> Iterator[Path]:
    """Write a stage's output to a temporary directory, which is stamped and renamed when it is complete and durable.

    Afterwards the pieces of the output (`work_of`) are deleted. keep: where an existing output is moved; by default
    it is deleted. An interruption or power loss leaves the previous output unchanged. Raises MachineError if another
    process is writing the output, because the result would be a mixture.
    """
    partial = directory.with_name(f".{directory.name}.partial")
    old = directory.with_name(f".{directory.name}.old")
    _refuse_others(old, STAMP, directory)
    with _alone_in(partial, directory):
        if old.exists() and not directory.exists():
            old.rename(directory)  # a crash happened between the two renames below
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
        # Only now, because nobody else may take the temporary name before it is renamed.
        (directory / LOCK).unlink()
        sync_directory(directory.parent)
        discard(work_of(directory))
        _delete(old, last=STAMP)


@contextmanager
def publishing_new(directory: Path, remedy: str) -> Iterator[Path]:
    """Write a new directory under a temporary name, which is renamed when it is complete and durable.

    Raises ConfigError if the name is taken, also at the end, and MachineError if another process is writing it.
    remedy: how the user can write elsewhere.
    """
    partial = directory.with_name(f".{directory.name}.partial")
    with _alone_in(partial, directory):
        try:
            if os.path.lexists(directory):  # checked under the lock, so that nobody else can publish it
                raise ConfigError(f"{directory} exists already; {remedy}")
            yield partial
            sync_tree(partial)
            partial.rename(directory)
        except BaseException:
            _delete(partial, last=LOCK)
            raise
        # Only now, because nobody else may take the temporary name before it is renamed.
        (directory / LOCK).unlink()
        sync_directory(directory.parent)


@contextmanager
def _alone_in(partial: Path, directory: Path) -> Iterator[None]:
    """Lock the temporary directory `partial` for this process and its children, and empty it. The kernel releases
    the lock of a dead process."""
    if partial.is_symlink():  # everything in the link's target would be deleted
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
        # The other process has just published or removed the folder. If that happens within mkdir(), the folder
        # exists when it is created and is gone when it is checked.
        if not partial.parent.is_dir():
            raise
        raise held from None
    try:
        if not _locks(descriptor) or not _is_at(descriptor, partial / LOCK):
            raise held
        for path in partial.iterdir():  # left by a crash
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
    """Lock an open file. Returns False if another process has the lock, and True on file systems without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
    return True


def code_commit() -> str:
    """Return the commit of the package's checkout, with '+' if files were changed; 'unknown' outside of a checkout."""
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
