"""JSON lines → rows: lines of bounded length, each one JSON object with a text."""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from trivium.corpus.config import ReadConfig
from trivium.corpus.quarantine import Trouble
from trivium.corpus.streams import Chunk, Lost

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Line(NamedTuple):
    """One line without its end, its number from 1, and where it (or its gzip member) begins."""

    data: bytes
    number: int
    offset: int


def lines(parts: Iterable[Chunk | Lost], limits: ReadConfig) -> Iterator[Line | Lost]:
    """Every line in order, blank ones too; one that is too long, or that bytes were lost from, as a Lost."""
    held = bytearray()
    number, offset = 1, 0  # of the line held
    too_long = False
    for part in parts:
        if isinstance(part, Lost):
            held.clear()
            yield part
            continue
        if not held and not too_long:
            offset = part.offset
        begin = 0
        while (end := part.data.find(b"\n", begin)) >= 0:
            held += part.data[begin:end]
            begin = end + 1
            if too_long or len(held) > limits.longest_bytes:
                yield _too_long(number, offset, limits)
            else:
                yield Line(bytes(held), number, offset)
            held.clear()
            too_long = False
            number += 1
            offset = part.offset if part.packed else part.offset + begin
        held += part.data[begin:]
        if len(held) > limits.longest_bytes:
            held.clear()
            too_long = True
    if too_long:
        yield _too_long(number, offset, limits)
    elif held:
        yield Line(bytes(held), number, offset)


def row_of(line: Line, fields: Sequence[str]) -> dict[str, Any] | Lost:
    """The JSON object on a line, which has a text under one of these fields; or what is wrong with it."""
    try:
        row = parsed(line.data)
    except UnicodeDecodeError as error:
        return Lost(Trouble.NOT_UTF8, f"line {line.number} is not UTF-8: {error.reason}", line.offset)
    except (ValueError, RecursionError) as error:
        return Lost(Trouble.NOT_JSON, f"line {line.number} is not JSON: {error}", line.offset)
    if not isinstance(row, dict) or text_of(row, fields) is None:
        what = f"line {line.number} has no text under any of: {', '.join(fields)} (harvest.read.text)"
        return Lost(Trouble.NO_TEXT, what, line.offset)
    if _SURROGATE.search(line.data) and not _encodable(row):
        return Lost(Trouble.SURROGATE, f"line {line.number} holds half of a character", line.offset)
    return row


def parsed(data: bytes) -> Any:
    """JSON as the standard library reads it; by pydantic's reader, five times as fast, where that takes the line.

    ValueError where it is nested deeper than that goes, 200 levels: how deep the library goes depends on who calls it,
    so it would take a row in one place and fail on the same in the next.
    """
    try:
        return from_json(data.removeprefix(BOM_UTF8))
    except ValueError as error:
        if "recursion limit" in str(error):
            raise
        return json.loads(data.decode("utf-8-sig"))


def text_of(row: dict[str, Any], fields: Sequence[str]) -> str | None:
    """The first text among these fields; a point parts the name of a field from that of a field in it."""
    found = (_at(row, name) for name in fields)
    return next((text for text in found if isinstance(text, str)), None)


def _at(row: dict[str, Any], path: str) -> Any:
    if path in row:
        return row[path]
    name, _, rest = path.partition(".")
    inner = row.get(name)
    return _at(inner, rest) if rest and isinstance(inner, dict) else None


def _too_long(number: int, offset: int, limits: ReadConfig) -> Lost:
    return Lost(Trouble.TOO_LONG, f"line {number} has more than {limits.longest_bytes} bytes", offset)


def _encodable(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
