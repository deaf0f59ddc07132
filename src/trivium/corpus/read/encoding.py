"""Decode bytes of unknown encoding as text without errors and without lone surrogates."""

import codecs
import itertools
import re
from collections.abc import Iterator
from types import MappingProxyType

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
# How an XML declaration begins in UTF-16 without a byte order mark.
_WIDE_XML = (("<?x".encode("utf-16-le"), "utf-16-le"), ("<?x".encode("utf-16-be"), "utf-16-be"))
_UTF_16 = "utf-16"  # Text in it may be valid UTF-8 as well, so only its name identifies it.
_JIS = "iso2022_jp"  # Japanese in bytes of ASCII between shifts
_SHIFT = re.compile(rb"\x1b\$[@B]")
_ANYTHING = "cp1252"  # Latin-1 on the web. Servers state it for any text, and nearly any bytes fit it.
# The encodings of the web that are supersets of those whose names they have, and labels that resiliparse does not know.
_OF_THE_WEB = MappingProxyType(
    {"shift_jis": "cp932", "euc_kr": "cp949", "gbk": "gb18030", "big5": "big5hkscs", "iso8859-11": "cp874"}
)
_LABELS = MappingProxyType(
    {
        "x-user-defined": "cp1252",
        "x-mac-cyrillic": "mac-cyrillic",
        "x-mac-ukrainian": "mac-cyrillic",
        "cp949": "cp949",  # as detection names it
    }
)
_LABEL = rb"[\"']?\s*+([\w.:-]{1,40})"
_COMMENT_OR_META = re.compile(rb"<!--.*?(?:-->|\Z)|<meta[\s/]([^>]{0,2000})", re.I | re.S)
# A name is read from its first character only, so that a long one is read once.
_ATTRIBUTE = re.compile(rb"(?<![^\s=/\"'>])([^\s=/\"'>]++)\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]++))")
_CHARSET = re.compile(rb"charset\s*+=\s*+" + _LABEL, re.I)
_XML = re.compile(rb"\s{0,64}<\?xml\s[^>]{0,200}?\bencoding\s*+=\s*+" + _LABEL, re.I)
_HEAD_BYTES = 1 << 12  # a page states its charset within these bytes
_DETECTION_BYTES = 1 << 17
_BEFORE_BYTES = 1 << 10  # given to detection before the first byte that is not ASCII
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_MIN_UTF_8 = 4  # bytes beyond the number of characters; that many are not valid UTF-8 by accident
_DAMAGE = "\ufffd" + "".join(map(chr, range(0x80, 0xA0)))
# The largest share of damage among the characters beyond ASCII in a page that is damaged UTF-8, or in the encoding that
# it states. Other bytes are rarely valid UTF-8; in a wrong encoding of another kind, often only 3 % are damage.
_MAX_DAMAGE_UTF_8, _MAX_DAMAGE_STATED = 0.2, 0.02
_MOSTLY = 0.5  # Latin-1, in which nearly nothing is damage, comes before encodings in which more is


def _replacement(error: UnicodeError) -> tuple[str, int]:
    """Decode a byte that an 8-bit codec does not define as the HTML standard does, and replace any other.

    The standard defines 0x80 to 0x9F in all 8-bit encodings, where Python's codecs of Windows have holes.
    """
    if not isinstance(error, UnicodeDecodeError):
        raise error
    byte = error.object[error.start]
    is_control = error.encoding == "charmap" and 0x80 <= byte < 0xA0
    return chr(byte) if is_control else "\ufffd", error.end


_ON_ERROR = "trivium-html"
codecs.register_error(_ON_ERROR, _replacement)


def decode(body: bytes, charset: str | None) -> str:
    """Decode by byte order mark, the stated charset, the page's own statement, or detection."""
    return without_surrogates(body.decode(encoding_of(body, charset), _ON_ERROR))


class Decoder:
    """Decodes block by block. The first block that is not all ASCII determines the encoding."""

    def __init__(self) -> None:
        self._codec: codecs.IncrementalDecoder | None = None

    def decode(self, block: bytes, *, last: bool) -> str:
        """Return the text of a block. A character that is split between blocks comes with the second one."""
        if self._codec is None:
            if block.isascii() and not _SHIFT.search(block):
                return block.decode("ascii")
            self._codec = codecs.getincrementaldecoder(encoding_of(block, None, whole=last))(_ON_ERROR)
        return without_surrogates(self._codec.decode(block, final=last))


def encoding_of(body: bytes, charset: str | None, *, whole: bool = True) -> str:
    """Return the name of the first codec that decodes `body`, in the order of the HTML standard.

    The order is: a byte order mark, the server's `charset`, the page's own statement, detection. There are two
    exceptions. Text that is valid UTF-8 in several places is UTF-8, whatever is stated. And servers state Latin-1 for
    any text, so UTF-8 and the page's own statement precede it. If nothing stated decodes `body` without errors, then
    UTF-8 or a statement with few errors precedes detection. whole: False if `body` may end inside a character.
    """
    marked = next((name for mark, name in (*_BOMS, *_WIDE_XML) if body.startswith(mark)), None)
    if marked:
        return marked
    if _SHIFT.search(body) and _damage(body, _JIS, whole) <= _MAX_DAMAGE_UTF_8:
        return _JIS
    stated = _known(charset)
    if stated and stated.startswith(_UTF_16) and _fits(body, stated, whole):
        return stated
    own = list(_own_statements(body))
    says: list[str | None] = [*own, stated] if stated == _ANYTHING else [stated, *own]
    if _is_surely_utf_8(body, whole):
        return "utf-8"
    before = [name for name in itertools.takewhile(lambda name: name != _ANYTHING, says) if name]
    for name in (*before, "utf-8"):
        if _fits(body, name, whole):
            return name
    likely = dict.fromkeys(["utf-8", *before], _MAX_DAMAGE_STATED) | {"utf-8": _MAX_DAMAGE_UTF_8}
    damage = {name: _damage(body, name, whole) for name in likely}
    for name, most in likely.items():
        if damage[name] <= most:
            return name
    if _ANYTHING in says and _fits(body, _ANYTHING, whole):
        return _ANYTHING
    for name in _detected(body):
        damage[name] = _damage(body, name, whole)
        if not damage[name]:
            return name
    if _ANYTHING in says:
        damage.setdefault(_ANYTHING, _MOSTLY)
    return min(damage, key=damage.__getitem__)


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which some codecs return, by replacement characters."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _own_statements(body: bytes) -> Iterator[str]:
    """Yield the codecs that a page states in meta elements, then in its XML declaration.

    UTF-16 is left out, because a page in it would not be readable here.
    """
    head = body[:_HEAD_BYTES]
    labels = [_label_of(meta[1]) for meta in _COMMENT_OR_META.finditer(head) if meta[1]]
    declared = _XML.match(head)
    for label in (*labels, declared[1] if declared else b""):
        name = _known(label.decode("ascii", "replace"))
        if name and not name.startswith(_UTF_16):
            yield name


def _label_of(meta: bytes) -> bytes:
    """Return the encoding that a meta element with these attributes states, or b""."""
    attributes = {name.lower(): b"".join(values) for name, *values in _ATTRIBUTE.findall(meta)}
    if b"charset" in attributes:
        return attributes[b"charset"].strip()
    found = _CHARSET.search(attributes.get(b"content", b"")) if b"http-equiv" in attributes else None
    return found[1] if found else b""


def _detected(body: bytes) -> Iterator[str]:
    """Yield the codecs that detection finds, in the page and in the part around its first byte that is not ASCII."""
    first = _NOT_ASCII.search(body)
    around = body[max(0, first.start() - _BEFORE_BYTES) :] if first else body
    for part in (body, around):
        # Renamed for HTML, an encoding that resiliparse does not know would be UTF-8.
        name = _known(detect_encoding(part, max_len=_DETECTION_BYTES, html5_compatible=False))
        if name:
            yield name


def _damage(body: bytes, name: str, whole: bool) -> float:
    """Return the share of replacement and control characters among those beyond ASCII."""
    text = codecs.getincrementaldecoder(name)("replace").decode(body, whole)
    # Matches of a pattern would take a hundred bytes for each character.
    return sum(map(text.count, _DAMAGE)) / max(1, len(text) - len(text.encode("ascii", "ignore")))


def _is_surely_utf_8(body: bytes, whole: bool) -> bool:
    """Return whether it is valid UTF-8 with several characters beyond ASCII."""
    text = _decoded(body, "utf-8", whole)
    return text is not None and len(body) - len(text) >= _MIN_UTF_8


def _fits(body: bytes, name: str, whole: bool) -> bool:
    return _decoded(body, name, whole) is not None


def _decoded(body: bytes, name: str, whole: bool) -> str | None:
    try:
        return codecs.getincrementaldecoder(name)().decode(body, whole)
    except UnicodeError:
        return None


def _known(charset: str | None) -> str | None:
    """Return Python's codec for a charset as it is named on the web, or None."""
    if not charset:
        return None
    try:
        label = charset.strip().lower()
        name = _LABELS.get(label) or map_encoding_to_html5(label, fallback_utf8=False)
        return codecs.lookup(_OF_THE_WEB.get(name, name)).name if name else None
    except (LookupError, ValueError):
        return None
