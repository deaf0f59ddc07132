"""JSON → rows: lines of bounded length, each one JSON object with a text, or one array of such objects."""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from pydantic_core import from_json

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Trouble
from trivium.corpus.read.streams import Chunk, Lost

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Line(NamedTuple):
    """One line without its end, its number from 1, and where it (or its gzip member) begins."""

    data: bytes
    number: int
    offset: int


def rows_of(parts: Iterator[Chunk | Lost], limits: ReadConfig) -> Iterator[dict[str, Any] | Lost]:
    """Yield every row of a JSON file, which has a text under one of `limits.text`, and a Lost for what is none.

    A row is a line, or an object of the one array that the file is, or the one object that it is. A line ends in a line
    feed and in nothing else, as texts may hold U+2028 and the like. An array has the size of a record at most, as it is
    parsed as a whole.
    """
    held: list[Chunk] = []
    size, lost = 0, None
    for part in parts:
        if isinstance(part, Lost):
            lost = part
            break
        held.append(part)
        size += len(part.data)
        if size > limits.longest_bytes or not _may_be_whole(held[0].data):
            break
    else:
        whole = _whole(b"".join(part.data for part in held))
        if whole is not None:
            for number, row in enumerate(whole, 1):
                yield _checked(row, f"object {number}", held[0].offset, limits.text)
            return
    before = [] if lost is None else [lost]
    if lost is None and held and _begins_array(held[0].data):
        yield Lost(Trouble.NOT_JSON, _not_lines(size > limits.longest_bytes, limits), held[0].offset)
        return
    for line in lines(chain(held, before, parts), limits):
        if isinstance(line, Lost):
            yield line
        elif line.data.strip():
            yield row_of(line, limits.text)


def _may_be_whole(begin: bytes) -> bool:
    """Return whether a file that begins so may be one array or object: its first line is no row."""
    first, end, _ = begin.removeprefix(BOM_UTF8).lstrip().partition(b"\n")
    if first[:1] == b"[":
        return True
    return first[:1] == b"{" and end == b"\n" and not first.rstrip().endswith(b"}")


def _begins_array(begin: bytes) -> bool:
    """Whether the first line is the beginning of an array, and not an array of its own, as a damaged row may be."""
    first, end, _ = begin.removeprefix(BOM_UTF8).lstrip().partition(b"\n")
    return first[:1] == b"[" and not (end and first.rstrip().endswith(b"]"))


def _whole(data: bytes) -> list[Any] | None:
    """Return the rows of a file that is one array or one object; None if it is something else."""
    try:
        found = parsed(data)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, list):
        return found
    return [found] if isinstance(found, dict) else None


def _not_lines(too_large: bool, limits: ReadConfig) -> str:
    what = "the file begins as one JSON array, but cannot be read as one"
    if too_large:
        limit = f"{limits.longest_bytes} bytes (harvest.read.longest_bytes)"
        what = f"the file is one JSON array of more than {limit}"
    return f"{what}; write one object on each line instead, for example with `jq -c '.[]' FILE > FILE.jsonl`"


def lines(parts: Iterable[Chunk | Lost], limits: ReadConfig) -> Iterator[Line | Lost]:
    """Yield every line in order, blank ones too; one that is too long, or that bytes were lost from, as a Lost."""
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
    """Return the JSON object on a line, which has a text under one of these fields; or what is wrong with it."""
    try:
        row = parsed(line.data)
    except UnicodeDecodeError as error:
        return Lost(Trouble.NOT_UTF8, f"line {line.number} is not UTF-8: {error.reason}", line.offset)
    except (ValueError, RecursionError) as error:
        return Lost(Trouble.NOT_JSON, f"line {line.number} is not JSON: {error}", line.offset)
    halves = _SURROGATE.search(line.data) is not None
    return _checked(row, f"line {line.number}", line.offset, fields, halves=halves)


def _checked(row: Any, where: str, offset: int, fields: Sequence[str], *, halves: bool = True) -> dict[str, Any] | Lost:
    """Return the row, if it has a text and no half of a character. halves: whether it may have some."""
    if not isinstance(row, dict) or text_of(row, fields) is None:
        what = f"{where} has no text under any of: {', '.join(fields)} (harvest.read.text)"
        return Lost(Trouble.NO_TEXT, what, offset)
    if halves and not _encodable(row):
        return Lost(Trouble.SURROGATE, f"{where} holds half of a character", offset)
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
    """Return the first text among these fields; a point parts the name of a field from that of a field in it."""
    found = (_at(row, name) for name in fields)
    return next((text for text in found if isinstance(text, str)), None)


def _at(row: dict[str, Any], path: str) -> Any:
    if path in row:
        return row[path]
    name, _, rest = path.partition(".")
    inner = row.get(name)
    return _at(inner, rest) if rest and isinstance(inner, dict) else None


def _too_long(number: int, offset: int, limits: ReadConfig) -> Lost:
    return Lost(
        Trouble.TOO_LONG,
        f"line {number} has more than {limits.longest_bytes} bytes (harvest.read.longest_bytes)",
        offset,
    )


def _encodable(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
