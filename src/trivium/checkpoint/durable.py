"""Durable writes of files and names, and errors that name the missing room."""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trivium.errors import CheckpointError
from trivium.provenance import file_sha256, sync_directory, unheard
from trivium.stores.remote import Location
from trivium.units import format_bytes

MARGIN_BYTES = 1 << 20  # for headers and the manifest, in addition to the tensors
_BLOCK_BYTES = 16 << 20  # between two checks for cancellation, and between two heartbeats
OF_A_RUN = "move --out"  # how to write the files of a run directory elsewhere
_DENIED = "this user may not read or write there: change its owner or mode, or {elsewhere}"
_REMEDY = {
    errno.ENOSPC: "make room there (training.keep_last limits how many checkpoints are kept), or {elsewhere}",
    errno.EDQUOT: "the quota is used up: delete something, have it raised, or {elsewhere}",
    errno.EFBIG: "the file is larger than this process may write (ulimit -f): raise the limit",
    errno.EMFILE: "this process has too many open files (ulimit -n): raise the limit",
    errno.EROFS: "the file system is read-only: mount it for writing, or {elsewhere}",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
}


class Written(NamedTuple):
    """Hash and size of a written file."""

    sha256: str
    bytes: int


def remedy_of(number: int | None, elsewhere: str = OF_A_RUN) -> str:
    """Return the remedy for a system error by its number; "" if unknown. elsewhere: how to write to another place."""
    return _REMEDY.get(number or 0, "").format(elsewhere=elsewhere)


def never() -> bool:
    """Return False: nothing cancels the work."""
    return False


def write_blocks(
    path: Path,
    blocks: Iterable[memoryview | bytes],
    cancelled: Callable[[], bool] = never,
    alive: Callable[[], None] = unheard,
) -> Written:
    """Write and hash a new file, and wait until it is on disk. alive: called after every block that was written."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    try:
        for block in blocks:
            view = memoryview(block).cast("B")
            for start in range(0, len(view), _BLOCK_BYTES):
                part = view[start : start + _BLOCK_BYTES]
                if cancelled():
                    raise CheckpointError(f"{path}: given up after {size} bytes, as another rank failed")
                digest.update(part)
                size += len(part)
                while part:
                    part = part[os.write(descriptor, part) :]
                alive()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Written(digest.hexdigest(), size)


def write_text(path: Path, text: str) -> None:
    """Write a small file and wait until it is on disk."""
    write_blocks(path, [text.encode()])


def read_back(path: Path, written: Written, alive: Callable[[], None] = unheard) -> None:
    """Read a written file again and compare, from the disk if the system can drop its cache. alive: called after every
    block that was read."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError, AttributeError):  # This is only a hint, which not every system supports.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if file_sha256(path, alive) != written.sha256:
        raise CheckpointError(
            f"{path} does not read back as it was written (sha256 {written.sha256[:12]}…): suspect the disk"
        )


def check_room(directory: Path, needed: int, elsewhere: str = OF_A_RUN) -> None:
    """Raise CheckpointError if the file system of `directory` has less than `needed` free bytes. elsewhere: see
    `remedy_of`."""
    free = shutil.disk_usage(directory).free
    if free < needed + MARGIN_BYTES:
        raise CheckpointError(
            f"{directory}: {format_bytes(needed + MARGIN_BYTES)} are needed and {format_bytes(free)} are free; "
            f"{remedy_of(errno.ENOSPC, elsewhere)}"
        )


def explained(error: Exception, directory: Location, needed: int, elsewhere: str = OF_A_RUN) -> str:
    """Return the message of an error while writing below `directory`, with path, needed and free bytes, and remedy.
    elsewhere: see `remedy_of`."""
    if not isinstance(error, OSError) or not isinstance(directory, Path):
        return str(error) or type(error).__name__
    remedy = remedy_of(error.errno, elsewhere) or f"see that the directory can be written, or {elsewhere}"
    return (
        f"{error.filename or directory}: {error.strerror}; {format_bytes(needed)} are needed and {_free(directory)} "
        f"are free; {remedy}"
    )


def _free(directory: Path) -> str:
    try:
        return format_bytes(shutil.disk_usage(directory).free)
    except OSError:
        return "an unknown number of bytes"


def remove(directory: Path) -> None:
    """Delete a directory such that its name never refers to a part of it; `recover` removes the rest after a crash.

    Of a symbolic link only the link is deleted, because its target belongs to another run.
    """
    if directory.is_symlink():
        directory.unlink()
        sync_directory(directory.parent)
        return
    doomed = directory.with_name(f".{directory.name}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    directory.rename(doomed)
    sync_directory(directory.parent)
    shutil.rmtree(doomed, ignore_errors=True)
