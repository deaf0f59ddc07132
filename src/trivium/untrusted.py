"""Open and decode files that may come from others: only regular files of bounded size and nesting.

A folder from another user may contain anything: a FIFO that blocks forever, a link to an endless device, or JSON
that is nested too deeply for the interpreter. All readers of such files open them here.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

from trivium.errors import DataError
from trivium.units import format_bytes, plain

MAX_NESTING_LEVELS = 200  # limit of from_json, far below that of recursive functions
CONFIG_BYTES = 512 << 10  # size of a YAML file, which the library reads at 50 to 300 KB per second
DOCUMENT_BYTES = 256 << 20  # size of a manifest, an index of weights, a tokenizer or a list of prompts
_BLOCK_BYTES = 1 << 20
_BYTE_ORDER_MARK = "\ufeff"
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


class UnfitFile(DataError, OSError):
    """A file that must not be read, because it is not a regular file or is larger than its reader allows.

    It is also an OSError, so that readers that report or tolerate unreadable files treat it as one.
    """

    def __init__(self, number: int, rule: str, path: str | os.PathLike[str]) -> None:
        super().__init__(number, rule, os.fspath(path))

    def __str__(self) -> str:
        return f"{plain(str(self.filename))}: {self.strerror}; replace it, or name another file"


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    Raises UnfitFile for anything else, without blocking on a FIFO, IsADirectoryError for a folder, and OSError if
    the file cannot be opened.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO would block until somebody writes to it. Regular files are not affected.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device without driver
            raise _not_regular(Path(path).stat().st_mode, path) from None
        raise
    return os.fdopen(only_regular(descriptor, path), "rb")


def only_regular(descriptor: int, path: str | os.PathLike[str]) -> int:
    """Return the descriptor of an open regular file. Closes any other, and raises as `open_regular` does."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise _not_regular(mode, path)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise as `open_regular` does. Call it before a library opens the path itself."""
    open_regular(path).close()


def read_bytes(path: str | os.PathLike[str], at_most: int = DOCUMENT_BYTES) -> bytes:
    """Return the content of a regular file. Raises UnfitFile if it has more than `at_most` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(size, at_most) + 1)  # read() allocates the requested size
        # The file may have grown, and files in /proc have size 0.
        while len(content) <= at_most and (more := file.read(min(_BLOCK_BYTES, at_most + 1 - len(content)))):
            content += more
    if len(content) > at_most:
        rule = f"it has more than {format_bytes(at_most)}, the limit for such a file"
        raise UnfitFile(errno.EFBIG, rule, path)
    return content


def read_text(path: str | os.PathLike[str], at_most: int = DOCUMENT_BYTES) -> str:
    """Return the text of a regular UTF-8 file without byte order mark. Raises UnfitFile or UnicodeDecodeError."""
    return read_bytes(path, at_most).decode("utf-8").removeprefix(_BYTE_ORDER_MARK)


def read_json(path: str | os.PathLike[str], at_most: int = DOCUMENT_BYTES) -> Any:
    """Return the content of a JSON file. Raises OSError if it cannot be read, and ValueError if it is not JSON."""
    return parse_json(read_bytes(path, at_most))


def read_optional_json(path: Path, at_most: int = DOCUMENT_BYTES) -> Any:
    """Return the content of a JSON file, or None if it cannot be read or is not JSON."""
    try:
        return read_json(path, at_most)
    except (OSError, ValueError):
        return None


def parse_json(
    data: str | bytes,
    *,
    parse_float: Callable[[str], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parse JSON with or without a byte order mark, as the standard library does.

    Raises ValueError for text that is not JSON, not UTF-8, or nested more than MAX_NESTING_LEVELS deep. The standard
    library's own limit depends on its caller, and functions that walk the result fail earlier. The hooks are those
    of `json.loads`.
    """
    if parse_float is None and parse_constant is None and object_pairs_hook is None:
        try:
            return from_json(data)  # five times as fast as the standard library
        except ValueError:
            pass  # the standard library also accepts lone surrogates, and reports line and column
    if isinstance(data, bytes):
        data = data.decode("utf-8")
    data = data.removeprefix(_BYTE_ORDER_MARK)
    _refuse_deep(data)
    return json.loads(data, parse_float=parse_float, parse_constant=parse_constant, object_pairs_hook=object_pairs_hook)


def _refuse_deep(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_NESTING_LEVELS:
        return
    level = 0
    for token in _TOKENS.finditer(text):
        match token[0]:
            case "[" | "{":
                level += 1
            case "]" | "}":
                level -= 1
        if level > MAX_NESTING_LEVELS:
            raise json.JSONDecodeError(f"nested more than {MAX_NESTING_LEVELS} levels deep", text, token.start())


def _not_regular(mode: int, path: str | os.PathLike[str]) -> UnfitFile:
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    return UnfitFile(errno.EINVAL, f"it is {kind}, not a regular file", path)
