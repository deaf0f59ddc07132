"""Read files of JSON lines: lines end in a line feed and nothing else, are bounded, and errors name line and column.

`str.splitlines` also splits at U+2028, U+2029 and U+0085, which JSON allows inside texts.
"""

import json
import os
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from trivium.errors import DataError
from trivium.units import format_bytes, plain
from trivium.untrusted import open_regular, parse_json

LONGEST_LINE_BYTES = 64 << 20
_SHOWN_CHARACTERS = 60


class Line(NamedTuple):
    """A line without its end, and its number in the file, counted from 1."""

    data: bytes
    number: int


class Row(NamedTuple):
    """What a line holds, and its number in the file, counted from 1."""

    value: Any
    number: int


def split_lines(data: bytes) -> list[bytes]:
    """Return the lines of a file's content that are not blank, without their ends and a byte order mark."""
    return [line.removesuffix(b"\r") for line in data.removeprefix(BOM_UTF8).split(b"\n") if line.strip()]


def text_lines(text: str) -> list[str]:
    """Return the lines of a text file, blank ones too, without their ends."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def read_lines(file: BinaryIO, longest_bytes: int = LONGEST_LINE_BYTES) -> Iterator[Line]:
    """Yield the lines of a file that are not blank. Raises ValueError for one of more than `longest_bytes` bytes."""
    number = 0
    while data := file.readline(longest_bytes + 1):
        number += 1
        if len(data.removesuffix(b"\n")) > longest_bytes:
            raise ValueError(f"line {number} has more than {format_bytes(longest_bytes)}")
        data = data.removeprefix(BOM_UTF8) if number == 1 else data
        if data.strip():
            yield Line(data.removesuffix(b"\n").removesuffix(b"\r"), number)


def parse_line(line: Line, **hooks: Any) -> Any:
    """Return the JSON value on a line. Raises ValueError, with line, column and rule, where it is none. hooks: those of
    `parse_json`."""
    try:
        return parse_json(line.data, **hooks)
    except json.JSONDecodeError as error:
        shown = line.data[: 4 * _SHOWN_CHARACTERS].decode("utf-8", errors="replace")[:_SHOWN_CHARACTERS]
        where = f"line {line.number}, column {error.colno}"
        raise ValueError(f"{where}: '{plain(shown)}' cannot be read as JSON ({error.msg})") from None
    except UnicodeDecodeError as error:
        where = f"line {line.number}, byte {error.start + 1}"
        raise ValueError(f"{where}: the line is not UTF-8 ({error.reason})") from None
    except ValueError as error:  # a number of thousands of digits
        raise ValueError(f"line {line.number}: {error}") from None


def read_rows(
    path: str | os.PathLike[str], *, named: str = "", remedy: str, longest_bytes: int = LONGEST_LINE_BYTES
) -> Iterator[Row]:
    """Yield the JSON values of a file, one a line. named: how messages call the file, by default its path.

    Raises DataError, with file, line, column and the remedy, where the file or one of its lines cannot be read.
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
