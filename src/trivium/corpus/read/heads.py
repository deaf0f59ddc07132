"""The heads of WARC records and of HTTP messages: a first line and header fields, up to an empty line.

Both standards ask for lines that end in CRLF, and let a reader take a bare LF (RFC 9112, section 2.2). Files hold
both, also within one head. Names of fields are the same in any case, and a field may go on in an indented line.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_EMPTY_LINE = re.compile(rb"\n[ \t\r]*\n")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256})[ \t]*:(.*)", re.S)
_BLANKS = b" \t\r"


class Head(NamedTuple):
    """The first line of a head, and the values of each field by its name in lower case, in order."""

    first: str
    fields: Mapping[str, tuple[str, ...]]

    def get(self, name: str) -> str:
        """The first value of a field; empty if the head has none of this name."""
        return next(iter(self.fields.get(name.lower(), ())), "")

    def joined(self, name: str) -> str:
        """All values of a field as the list that they make together."""
        return ", ".join(self.fields.get(name.lower(), ()))


def head_end(data: bytes | bytearray, start: int = 0, stop: int | None = None) -> int | None:
    """Where the body begins behind the head at `start`; None if no empty line stands before `stop`."""
    found = _EMPTY_LINE.search(data, start, len(data) if stop is None else stop)
    return found.end() if found else None


def parse_head(data: bytes) -> Head | None:
    """The head in `data`, which ends with its empty line; None if that line belongs to something else.

    A line that is no field is passed over, as browsers do. But where such a line comes last, or begins like a tag, or
    where a CR stands within a line, the head has no end of its own: the body began before the empty line.
    """
    first, *lines = data.split(b"\n")
    fields: dict[str, list[str]] = {}
    values: list[str] = []  # of the field that the last line belongs to
    whole = True
    for line in lines:
        if not line.strip(_BLANKS):
            break
        if line.startswith(b"<") or b"\r" in line.strip(_BLANKS):
            return None
        if line[:1] in (b" ", b"\t") and values:
            values[-1] = f"{values[-1]} {_text(line)}".strip()
            continue
        found = _FIELD.match(line)
        whole = found is not None
        if found:
            values = fields.setdefault(found[1].decode("ascii").lower(), [])
            values.append(_text(found[2]))
    if not whole:
        return None
    return Head(_text(first), MappingProxyType({name: tuple(value) for name, value in fields.items()}))


def _text(value: bytes) -> str:
    value = value.strip(_BLANKS)
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
