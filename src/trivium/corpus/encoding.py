"""Bytes → text: the encoding found out, never an error, never a lone surrogate."""

import codecs
import re

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_UTF_16 = "utf-16"  # in which other text is valid UTF-8 too: only its name tells it
_JIS = "iso2022_jp"  # in which Japanese is ASCII's bytes between shifts
_SHIFT = re.compile(rb"\x1b\$[@B]")
_ANYTHING = "cp1252"  # what servers state for anything (as Latin-1), and nearly anything fits it
_META = re.compile(rb"<meta\s[^>]{0,200}?charset\s*+=\s*+[\"']?\s*+([\w.:-]{1,40})", re.I)
_HEAD = 1 << 12  # bytes in which a page states its charset
_LOOKED_AT = 1 << 17  # bytes a detector needs
_BEFORE = 1 << 10  # bytes it is shown before the first that is not ASCII
_NOT_ASCII = re.compile(rb"[\x80-\xff]")


def decode(body: bytes, charset: str | None) -> str:
    """Bytes as text: by byte order mark, UTF-8, the stated charset, the page's own statement, or detection."""
    return without_surrogates(body.decode(encoding_of(body, charset), "replace"))


class Decoder:
    """Bytes as text block by block: the encoding is found out at the first block that is not all ASCII."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._codec: codecs.IncrementalDecoder | None = None

    def decode(self, block: bytes, *, last: bool) -> str:
        """The text of a block; a character that the block cuts comes with the next one."""
        if self._codec is None:
            if block.isascii() and not _SHIFT.search(block):
                return block.decode("ascii")
            self._codec = codecs.getincrementaldecoder(encoding_of(block, None, whole=last))("replace")
        return without_surrogates(self._codec.decode(block, final=last))


def encoding_of(body: bytes, charset: str | None, *, whole: bool = True) -> str:
    """The name of a codec for `body`: the first that fits of those that speak for it.

    whole: False where `body` may end within a character.
    UTF-8 comes before what a server states: text that is valid UTF-8 and not plain ASCII is nothing else, while
    servers state Latin-1 for anything; against that the page's own statement counts.
    """
    marked = next((name for mark, name in _BOMS if body.startswith(mark)), None)
    if marked:
        return marked
    if _SHIFT.search(body) and _fits(body, _JIS, whole):
        return _JIS
    stated = _known(charset)
    if stated and stated.startswith(_UTF_16) and _fits(body, stated, whole):
        return stated
    for name in ("utf-8", _own_statement(body) if stated == _ANYTHING else None, stated):
        if name and _fits(body, name, whole):
            return name
    found = _known(detect_encoding(body, max_len=_LOOKED_AT, from_html_meta=True))
    if found and _fits(body, found, whole):
        return found
    first = _NOT_ASCII.search(body)
    begin = max(0, first.start() - _BEFORE) if first else 0
    return _known(detect_encoding(body[begin:], max_len=_LOOKED_AT)) or stated or "utf-8"


def without_surrogates(text: str) -> str:
    """Half characters, which some codecs let through, as replacement characters."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _own_statement(body: bytes) -> str | None:
    """The codec that a page names itself; none for UTF-16, in which the name could not be read so."""
    found = _META.search(body, 0, _HEAD)
    name = _known(found[1].decode("ascii", "replace")) if found else None
    return None if name is None or name.startswith(_UTF_16) else name


def _fits(body: bytes, name: str, whole: bool) -> bool:
    try:
        codecs.getincrementaldecoder(name)().decode(body, whole)
    except UnicodeError:
        return False
    return True


def _known(charset: str | None) -> str | None:
    """A codec of Python's for a charset as the web names it, or None."""
    if not charset:
        return None
    try:
        name = map_encoding_to_html5(charset, fallback_utf8=False)
        return codecs.lookup(name).name if name else None
    except (LookupError, ValueError):
        return None
