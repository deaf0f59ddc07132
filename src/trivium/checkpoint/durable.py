"""Files and names that are on disk when they are said to be, and errors that say how much room was missing."""

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

MARGIN_BYTES = 1 << 20  # beyond the tensors: headers and the manifest
_BLOCK_BYTES = 16 << 20  # between two looks at whether the work was cancelled, and two signs of life
OF_A_RUN = "move --out"  # how to write elsewhere what lies in a run directory
_DENIED = "this user may not read or write there: change its owner or mode, or {elsewhere}"
_REMEDY = {
    errno.ENOSPC: "make room there, keep fewer checkpoints (training.keep_last), or {elsewhere}",
    errno.EDQUOT: "the quota is used up: delete something, have it raised, or {elsewhere}",
    errno.EFBIG: "this process may not write files so large (ulimit -f): raise the limit",
    errno.EMFILE: "this process may not open so many files at once (ulimit -n): raise the limit",
    errno.EROFS: "the file system is read-only: mount it for writing, or {elsewhere}",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
}


class Written(NamedTuple):
    """What a file must have to be the one that was written."""

    sha256: str
    bytes: int


def remedy_of(number: int | None, elsewhere: str = OF_A_RUN) -> str:
    """What to do about an error of the system, by its number; nothing where that is not known. elsewhere: how the user
    has it written to another place."""
    return _REMEDY.get(number or 0, "").format(elsewhere=elsewhere)


def never() -> bool:
    """Nothing cancels the work."""
    return False


def write_blocks(
    path: Path,
    blocks: Iterable[memoryview | bytes],
    cancelled: Callable[[], bool] = never,
    alive: Callable[[], None] = unheard,
) -> Written:
    """Write a new file, hashing what is written, and wait until it is on the disk. alive: called after every block
    that was written."""
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
    """Write a small file and wait until it is on the disk."""
    write_blocks(path, [text.encode()])


def read_back(path: Path, written: Written, alive: Callable[[], None] = unheard) -> None:
    """Read a written file again, from the disk where the system can forget it, and compare. alive: called after every
    block that was read."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError, AttributeError):  # only a hint, and not every system has it
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if file_sha256(path, alive) != written.sha256:
        raise CheckpointError(
            f"{path} does not read back as it was written (sha256 {written.sha256[:12]}…): suspect the disk"
        )


def check_room(directory: Path, needed: int, elsewhere: str = OF_A_RUN) -> None:
    """CheckpointError when the file system of `directory` has not `needed` bytes to give. elsewhere: as of
    `remedy_of`."""
    free = shutil.disk_usage(directory).free
    if free < needed + MARGIN_BYTES:
        raise CheckpointError(
            f"{directory}: {needed + MARGIN_BYTES} bytes are needed and {free} are free; "
            f"{remedy_of(errno.ENOSPC, elsewhere)}"
        )


def explained(error: Exception, directory: Path, needed: int, elsewhere: str = OF_A_RUN) -> str:
    """An error of writing below `directory`, with path, needed and free bytes, and the remedy. elsewhere: as of
    `remedy_of`."""
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    remedy = remedy_of(error.errno, elsewhere) or f"see that the directory can be written, or {elsewhere}"
    return (
        f"{error.filename or directory}: {error.strerror}; {needed} bytes are needed and {_free(directory)} are "
        f"free; {remedy}"
    )


def _free(directory: Path) -> int | str:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return "an unknown number"


def remove(directory: Path) -> None:
    """Delete a directory so that its name never stands for half of it; what a crash leaves is cleared later. Of a link
    it is the link: what that leads to is another run's."""
    if directory.is_symlink():
        directory.unlink()
        sync_directory(directory.parent)
        return
    doomed = directory.with_name(f".{directory.name}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    directory.rename(doomed)
    sync_directory(directory.parent)
    shutil.rmtree(doomed, ignore_errors=True)
