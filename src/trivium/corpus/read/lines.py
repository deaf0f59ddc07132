"""Rows of JSON files: lines of bounded length that are one JSON object each, or one array of such objects."""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import RAW, Document, Trouble
from trivium.corpus.read.streams import Chunk, Lost
from trivium.untrusted import parse_json

OWN_FIELDS = ("id", "source", RAW)  # fields of a row besides its text; all others become metadata
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Line(NamedTuple):
    """One line without its end, its number from 1, and where it (or its gzip member) begins."""

    data: bytes
    number: int
    offset: int


def rows_of(parts: Iterator[Chunk | Lost], limits: ReadConfig) -> Iterator[dict[str, Any] | Lost]:
    """Yield every row of a JSON file that has a text under one of `limits.text`, and a Lost for every other row.

    A row is a line, or an object of the one array that the file is, or the one object that it is. Only a line feed ends
    a line, because texts may contain U+2028 and the like. An array is parsed as a whole, so it may not be larger than a
    record.
    """
    held: list[Chunk] = []
    lost: list[Lost] = []
    size = 0
    for part in parts:
        if isinstance(part, Lost):
            lost = [part]
            break
        held.append(part)
        size += len(part.data)
        if size > limits.longest_bytes or not _may_be_whole(*_first_line(held[0])):
            break
    else:
        whole = _whole(b"".join(part.data for part in held))
        if whole is not None:
            for number, row in enumerate(whole, 1):
                yield _checked(row, f"object {number}", held[0].offset, limits.text)
            return
    if held and not lost and _begins_array(*_first_line(held[0])):
        what = "the file begins as one JSON array, but cannot be read as one"
        if size > limits.longest_bytes:
            limit = f"{limits.longest_bytes} bytes (harvest.read.longest_bytes)"
            what = f"the file is one JSON array of more than {limit}"
        remedy = "write one object on each line instead, for example with `jq -c '.[]' FILE > FILE.jsonl`"
        yield Lost(Trouble.NOT_JSON, f"{what}; {remedy}", held[0].offset)
        return
    for line in lines(chain(held, lost, parts), limits):
        if isinstance(line, Lost):
            yield line
        elif line.data.strip():
            yield row_of(line, limits.text)


def _first_line(begin: Chunk) -> tuple[bytes, bool]:
    """Return the first line without blanks around it, and whether its end is known."""
    first, end, _ = begin.data.removeprefix(BOM_UTF8).lstrip().partition(b"\n")
    return first.rstrip(), bool(end)


def _may_be_whole(first: bytes, is_ended: bool) -> bool:
    """Return whether the file may be one array or one object, because its first line is no row."""
    return first[:1] == b"[" or (first[:1] == b"{" and is_ended and first[-1:] != b"}")


def _begins_array(first: bytes, is_ended: bool) -> bool:
    """Return whether the first line begins an array that continues. A complete array may be a damaged row."""
    return first[:1] == b"[" and not (is_ended and first[-1:] == b"]")


def _whole(data: bytes) -> list[Any] | None:
    """Return the rows of a file that is one array or one object, or None if it is something else."""
    try:
        found = parse_json(data)
    except ValueError:
        return None
    return [found] if isinstance(found, dict) else found if isinstance(found, list) else None


def lines(parts: Iterable[Chunk | Lost], limits: ReadConfig) -> Iterator[Line | Lost]:
    """Yield every line in order, blank ones too, and a Lost for one that is too long or incomplete."""
    held = bytearray()
    number, offset = 1, 0  # number and offset of the line in `held`
    too_long = False

    def ended() -> Line | Lost:
        if too_long or len(held) > limits.longest_bytes:
            what = f"line {number} has more than {limits.longest_bytes} bytes (harvest.read.longest_bytes)"
            return Lost(Trouble.TOO_LONG, what, offset)
        return Line(bytes(held), number, offset)

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
            yield ended()
            held.clear()
            too_long = False
            number += 1
            offset = part.offset if part.packed else part.offset + begin
        held += part.data[begin:]
        if len(held) > limits.longest_bytes:
            held.clear()
            too_long = True
    if held or too_long:
        yield ended()


def row_of(line: Line, fields: Sequence[str]) -> dict[str, Any] | Lost:
    """Return the JSON object on a line that has a text under one of these fields, or what is wrong with the line."""
    try:
        row = parse_json(line.data)
    except UnicodeDecodeError as error:
        return Lost(Trouble.NOT_UTF8, f"line {line.number} is not UTF-8: {error.reason}", line.offset)
    except ValueError as error:
        return Lost(Trouble.NOT_JSON, f"line {line.number} is not JSON: {error}", line.offset)
    halves = _SURROGATE.search(line.data) is not None
    return _checked(row, f"line {line.number}", line.offset, fields, halves=halves)


def _checked(row: Any, where: str, offset: int, fields: Sequence[str], *, halves: bool = True) -> dict[str, Any] | Lost:
    """Return the row if it has a text and no lone surrogate. halves: whether it may have some."""
    if not isinstance(row, dict) or text_of(row, fields) is None:
        what = f"{where} has no text under any of: {', '.join(fields)} (harvest.read.text)"
        return Lost(Trouble.NO_TEXT, what, offset)
    if halves:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            return Lost(Trouble.SURROGATE, f"{where} holds half of a character", offset)
    return row


def text_of(row: dict[str, Any], fields: Sequence[str]) -> str | None:
    """Return the first text among these fields. In the name of a field, a point separates it from a field inside it."""
    found = (_at(row, name) for name in fields)
    return next((text for text in found if isinstance(text, str)), None)


def _at(row: dict[str, Any], path: str) -> Any:
    if path in row:
        return row[path]
    name, _, rest = path.partition(".")
    inner = row.get(name)
    return _at(inner, rest) if rest and isinstance(inner, dict) else None


def row_document(row: dict[str, Any], source: str, limits: ReadConfig) -> Document:
    """Return the document of a row of a table or a JSON file."""
    text = text_of(row, limits.text) or ""
    # A field that contains the text is left out as a whole, or metadata would repeat the text.
    own = {*OWN_FIELDS, *limits.text, *(name.partition(".")[0] for name in limits.text)}
    metadata = {name: value for name, value in row.items() if name not in own}
    if isinstance(metadata.get("metadata"), dict):
        metadata |= metadata.pop("metadata")
    metadata.pop(RAW, None)  # marks a page that is not extracted yet, which a row is not, whatever it says
    named = row["source"] if isinstance(row.get("source"), str) and row["source"] else source
    identity = str(row["id"]) if isinstance(row.get("id"), str | int) else digest_of(named, text)
    return Document(identity, text, named, metadata)


def digest_of(*parts: str) -> str:
    """Return an id for a document that has none, from what distinguishes it."""
    return blake2b("\x1f".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
