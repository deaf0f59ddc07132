"""Find where the records of a WARC file begin and end, also after damage.

ISO 28500: a record is a line `WARC/1.x`, header fields, an empty line, Content-Length bytes, two line ends. Lines may
end in CRLF or in a bare LF. Any part of a record may be damaged. Then the search continues at the next line that begins
a record, also inside the bytes that a wrong length claims.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Trouble
from trivium.corpus.read.streams import Chunk, Lost

_EMPTY_LINE = re.compile(rb"\n[ \t\r]*\n")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256})[ \t]*:(.*)", re.S)
_BLANKS = b" \t\r"


class Head(NamedTuple):
    """The values of each field of a head by its name in lower case, in order."""

    fields: Mapping[str, list[str]]

    def get(self, name: str) -> str:
        """Return the first value of a field, or "" if there is none."""
        return next(iter(self.fields.get(name.lower(), ())), "")

    def joined(self, name: str) -> str:
        """Return all values of a field as one comma-separated list."""
        return ", ".join(self.fields.get(name.lower(), ()))


def head_end(data: bytes, start: int) -> int | None:
    """Return where the body after the head at `start` begins, or None if there is no empty line."""
    found = _EMPTY_LINE.search(data, start)
    return found.end() if found else None


def parse_head(data: bytes) -> Head | None:
    """Return the head in `data`, which ends with an empty line, or None if that line belongs to the body.

    A line that is no field is ignored, as browsers do. But if it is the last one or begins like a tag, or if a CR is
    inside a line, the body began before the empty line.
    """
    fields: dict[str, list[str]] = {}
    values: list[str] = []  # values of the field to which the last line belongs
    last_is_field = True
    for line in data.split(b"\n")[1:]:
        if not line.strip(_BLANKS):
            break
        if line.startswith(b"<") or b"\r" in line.strip(_BLANKS):
            return None
        if line[:1] in (b" ", b"\t") and values:
            values[-1] = f"{values[-1]} {_text(line)}".strip()
            continue
        found = _FIELD.match(line)
        last_is_field = found is not None
        if found:
            values = fields.setdefault(found[1].decode("ascii").lower(), [])
            values.append(_text(found[2]))
    return Head(fields) if last_is_field else None


def _text(value: bytes) -> str:
    value = value.strip(_BLANKS)
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


_LENGTH = re.compile(r"\d{1,15}", re.A)
_VERSION = rb"WARC/\d\.\d{1,2}[ \t\r]{0,4}\n"
_FIRST = re.compile(_VERSION, re.I)
# The first line of a record and the beginning of a field, which are searched for in bytes of any kind.
_BEGIN_FIELDS = _VERSION + rb"(?:WARC|Content)-"
_BEGIN = re.compile(rb"(?:\A|\n)(?=" + _BEGIN_FIELDS + rb")", re.I)
# The end of a head, or where it breaks off because another record begins. If heads could contain the beginnings of
# others, each would be read to the end of all.
_HEAD_END = re.compile(rb"\n(?:(?P<body>[ \t\r]*\n)|(?=" + _BEGIN_FIELDS + rb"))", re.I)
_BLANK = re.compile(rb"[\r\n]+")
_BEGIN_BYTES = 32  # number of bytes that _BEGIN needs
_MAX_HEAD_BYTES = 1 << 16
_END = b"\r\n\r\n"


class Frame(NamedTuple):
    """One record: its head, the bytes of its block, and where it (or its gzip member) begins in the stored file."""

    head: Head
    block: bytes
    offset: int


class _Taken(NamedTuple):
    """The item at the front of the buffer, and its size. search: whether to search the next record, after damage."""

    item: Frame | Lost | None
    size: int
    search: bool = False


def frames(parts: Iterable[Chunk | Lost], limits: ReadConfig) -> Iterator[Frame | Lost]:
    """Yield every complete record in order, and a Lost for each stretch of bytes without one."""
    framer = _Framer(limits)
    member = -1
    for part in parts:
        if isinstance(part, Lost):
            yield from (found for found in framer.take(at_end=True) if isinstance(found, Frame))
            framer = _Framer(limits)
            yield part
            continue
        if part.packed and part.offset != member and _FIRST.match(part.data):
            # This member begins with a record, so the rest of the previous member is a truncated record.
            yield from framer.take(at_end=True)
            framer = _Framer(limits)
        member = part.offset
        framer.add(part)
        yield from framer.take(at_end=False)
    yield from framer.take(at_end=True)


class _Framer:
    """A buffer of bytes and the search for records in it."""

    def __init__(self, limits: ReadConfig) -> None:
        self._longest = limits.longest_bytes
        self._buffer = bytearray()
        self._at = 0  # where the buffer begins or, in a compressed file, the member last added
        self._packed = False
        self._searching = False
        self._needed = 0  # bytes without which the record at the front cannot be complete

    def add(self, chunk: Chunk) -> None:
        if chunk.packed or not self._buffer:
            self._at, self._packed = chunk.offset, chunk.packed
        self._buffer += chunk.data

    def take(self, *, at_end: bool) -> Iterator[Frame | Lost]:
        """Yield the records that are complete. at_end: nothing will be added."""
        while self._buffer and (at_end or len(self._buffer) >= self._needed):
            self._needed = 0
            if self._searching:
                found = _BEGIN.search(self._buffer)
                self._drop(found.end() if found else max(0, len(self._buffer) - (0 if at_end else _BEGIN_BYTES)))
                if not found:
                    return
            taken = self._front(at_end)
            if taken is None:
                return
            self._drop(taken.size)
            self._searching = taken.search
            if taken.item is not None:
                yield taken.item

    def _drop(self, size: int) -> None:
        del self._buffer[:size]
        self._at += 0 if self._packed else size

    def _front(self, at_end: bool) -> _Taken | None:
        """Return the record at the front, or what is wrong with it, or None if more bytes are needed to decide."""
        buffer = self._buffer
        if blank := _BLANK.match(buffer):
            return _Taken(None, blank.end())
        if len(buffer) < _BEGIN_BYTES and not at_end:
            return None
        if not _FIRST.match(buffer):
            return self._lost(Trouble.NOT_A_RECORD, f"{bytes(buffer[:20])!r} begins no record", 1)
        found = _HEAD_END.search(buffer, 0, _MAX_HEAD_BYTES)
        is_cut = found is None and len(buffer) < _MAX_HEAD_BYTES
        if is_cut and not at_end:
            self._needed = min(2 * len(buffer), _MAX_HEAD_BYTES)
            return None
        body = found.end() if found and found["body"] else None
        head = None if body is None else parse_head(bytes(buffer[:body]))
        if body is None or head is None:
            return self._lost(Trouble.CUT if is_cut else Trouble.NOT_A_RECORD, "the record's header does not end", 1)
        stated = head.get("Content-Length")
        if not _LENGTH.fullmatch(stated):
            what = f"the Content-Length {stated[:40]!r}" if stated else "no Content-Length"
            return self._lost(Trouble.LENGTH, f"the record states {what}", body)
        length = int(stated)
        if length > self._longest:
            what = f"the record states {length} bytes; the limit is {self._longest}"
            return self._lost(Trouble.TOO_LONG, what, body)
        end = body + length
        if len(buffer) < end:
            self._needed = end
            what = f"there are {len(buffer) - body} of the {length} bytes the record states"
            return self._lost(Trouble.CUT, what, body) if at_end else None
        behind = bytes(buffer[end : end + len(_END) + _BEGIN_BYTES])
        if len(behind) < len(_END) + _BEGIN_BYTES and not at_end and behind[: len(_END)] != _END:
            return None
        rest = behind.lstrip(b"\r\n")
        if behind[: len(_END)] == _END or (at_end and not rest) or _FIRST.match(rest):
            return _Taken(Frame(head, bytes(buffer[body:end]), self._at), end)
        return self._lost(Trouble.LENGTH, f"no record ends where this one of {length} bytes should", body)

    def _lost(self, trouble: Trouble, detail: str, size: int) -> _Taken:
        return _Taken(Lost(trouble, detail, self._at), size, search=True)
