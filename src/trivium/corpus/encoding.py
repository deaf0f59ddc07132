"""Bytes → text: the encoding found out, never an error, never a lone surrogate."""

import codecs
import re

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
# Encodings in which other text is valid UTF-8 too: only their name tells them.
_ONLY_BY_NAME = ("utf-16", "iso-2022-jp", "utf-7", "hz")
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
            if block.isascii():
                return block.decode("ascii")
            self._codec = codecs.getincrementaldecoder(encoding_of(block, None, whole=last))("replace")
        return without_surrogates(self._codec.decode(block, final=last))


def encoding_of(body: bytes, charset: str | None, *, whole: bool = True) -> str:
    """The name of a codec for `body`: the first that fits of those that speak for it.

    whole: False where `body` may end within a character.
    UTF-8 comes before what a server states: text that is valid UTF-8 and not plain ASCII is nothing else, while
    servers state Latin-1 for anything.
    """
    marked = next((name for mark, name in _BOMS if body.startswith(mark)), None)
    if marked:
        return marked
    stated = _known(charset)
    if stated and stated.startswith(_ONLY_BY_NAME) and _fits(body, stated, whole):
        return stated
    for name in ("utf-8", stated):
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
