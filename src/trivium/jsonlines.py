"""Read JSON lines. Only a line feed ends a line, lines are bounded, and errors name line and column.

`str.splitlines` would also split at U+2028, U+2029 and U+0085, which JSON allows inside strings.
"""

import json
import os
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

from trivium.errors import DataError
from trivium.units import format_bytes, plain
from trivium.untrusted import open_regular, parse_json

LONGEST_LINE_BYTES = 64 << 20
BLOCK_BYTES = 64 << 10  # bytes of lines that are parsed together
_SHOWN_CHARACTERS = 60


class Line(NamedTuple):
    """A line without its line feed, and its 1-based number."""

    data: bytes
    number: int


class Row(NamedTuple):
    """The value of a line, and its 1-based number."""

    value: Any
    number: int


def split_lines(data: bytes) -> list[bytes]:
    """Return the lines that are not blank, without line ends and byte order mark."""
    return [line.removesuffix(b"\r") for line in data.removeprefix(BOM_UTF8).split(b"\n") if line.strip()]


def text_lines(text: str) -> list[str]:
    """Return all lines of a text, including blank ones, without line ends."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def read_lines(file: BinaryIO, longest_bytes: int = LONGEST_LINE_BYTES) -> Iterator[Line]:
    """Yield the lines that are not blank. Raises ValueError for one of more than `longest_bytes` bytes."""
    number = 0
    while data := file.readline(longest_bytes + 1):
        number += 1
        if len(data) > longest_bytes and len(data.removesuffix(b"\n")) > longest_bytes:
            raise ValueError(f"line {number} has more than {format_bytes(longest_bytes)}")
        if number == 1:
            data = data.removeprefix(BOM_UTF8)
        if data and not data.isspace():
            yield Line(data.removesuffix(b"\n").removesuffix(b"\r"), number)


def read_values(file: BinaryIO, block_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
    """Yield the value of each line that is not blank, or the ValueError of one that cannot be parsed.

    The lines of a block are parsed together, as one JSON list, in three quarters of the time. A block whose list
    does not have a value for each line is parsed line by line. Raises ValueError for a line that is too long.
    """
    rest, number = b"", 0
    while block := file.read(block_bytes):
        whole, end, rest = (rest + block).rpartition(b"\n")
        if len(rest) > LONGEST_LINE_BYTES:
            raise ValueError(f"line {number + 1} has more than {format_bytes(LONGEST_LINE_BYTES)}")
        if end:
            yield from _values_of(whole, number)
            number += whole.count(b"\n") + 1
    yield from _values_of(rest, number)


def _values_of(block: bytes, before: int) -> Iterator[Any]:
    """Yield the values of the lines of a block. before: the number of lines before it."""
    lines = [line for line in block.split(b"\n") if line and not line.isspace()]
    with suppress(ValueError):
        values = parse_json(b"[%s]" % b",".join(lines))
        if len(values) == len(lines):
            yield from values
            return
    for line in read_lines(BytesIO(block)):
        try:
            yield parse_line(line._replace(number=before + line.number))
        except ValueError as error:
            yield error


def parse_line(line: Line, **hooks: Any) -> Any:
    """Parse the JSON value of a line. Raises ValueError, with line, column and rule. hooks: those of `parse_json`."""
    try:
        return parse_json(line.data, **hooks)
    except json.JSONDecodeError as error:
        shown = line.data[: 4 * _SHOWN_CHARACTERS].decode("utf-8", errors="replace")[:_SHOWN_CHARACTERS]
        where = f"line {line.number}, column {error.colno}"
        raise ValueError(f"{where}: '{plain(shown)}' cannot be read as JSON ({error.msg})") from None
    except UnicodeDecodeError as error:
        where = f"line {line.number}, byte {error.start + 1}"
        raise ValueError(f"{where}: the line is not UTF-8 ({error.reason})") from None
    except ValueError as error:  # a number with thousands of digits
        raise ValueError(f"line {line.number}: {error}") from None


def read_rows(
    path: str | os.PathLike[str], *, named: str = "", remedy: str, longest_bytes: int = LONGEST_LINE_BYTES
) -> Iterator[Row]:
    """Yield the JSON values of a file, one per line. named: the file's name in messages, by default its path.

    Raises DataError, with file, line, column and remedy, if the file or a line is invalid.
    """
    name = plain(named or os.fspath(path))
    try:
        with open_regular(path) as file:
            for line in read_lines(file, longest_bytes):
                yield Row(parse_line(line), line.number)
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}; {remedy}") from None
    except ValueError as error:
        raise DataError(f"{name}, {error}; {remedy}") from None
