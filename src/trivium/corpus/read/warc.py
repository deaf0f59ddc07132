"""Pages in WARC files: written as one gzip member each, and read with every kind of damage reported."""

import base64
import gzip
import hashlib
import io
import re
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from fastwarc.warc import WarcRecord, WarcRecordType

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Damage, PassedOver, Trouble
from trivium.corpus.read.streams import Lost, chunks, open_binary, unpacked
from trivium.corpus.read.warc_frames import Frame, Head, frames, head_end, parse_head
from trivium.seeds import seed_for

DEFAULT_DATE = "2021-01-15T00:00:00Z"
_DOCUMENT, _SOURCE = "Trivium-Document", "Trivium-Source"
_ESCAPED = re.compile(r"[%\x00-\x1f\x7f]|^ | $|(?<= ) ")  # in headers, because readers join lines and blanks
_WITH_PAGES = ("response", "resource", "conversion")  # conversion: the text records of WET files
_OTHERS = ("warcinfo", "request", "metadata", "revisit", "continuation")
_CODECS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "br": "br", "zstd": "zstd"}
_PLAIN = ("", "identity", "none", "chunked")  # codings that do not change a body, once its chunks are joined
_MAX_CODINGS = 5  # as in curl; servers use one
_DIGESTS = ("sha1", "sha256", "sha512", "md5")
_CHARSET = re.compile(
    r"charset\s*+=\s*+[\"']?\s*+([\w.:-]{1,40})", re.I
)  # possessive, so that many blanks take linear time
_STATUS = re.compile(r"HTTP/\d+(?:\.\d+)?[ \t]+(\d{3})(?!\d)", re.I | re.A)  # HTTP/2 has no minor version
_TEXT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<[!?a-zA-Z]|[\t\n\r -~]{64})")  # how pages and texts begin
_CHUNK = re.compile(rb"\s*([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,127}/[\w.+-]{1,127}", re.A)
_HTML, _TEXT_TYPE = "text/html", "text/plain"
_READABLE = (_HTML, "application/xhtml+xml", _TEXT_TYPE)
_UNKNOWN_TYPES = ("unknown/unknown", "application/unknown")
# If no media type is stated, the first bytes decide, as in the WHATWG's MIME sniffing standard.
_SNIFFED_BYTES = 1445
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_TAG = re.compile(rb"<(?:!doctype|!--|\?xml|/?[a-z][a-z0-9]*[\s/>])", re.I)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class Page:
    """One response: its address, media type and charset, and the bytes of its body, content encodings undone.

    document, source: the id and source that an earlier harvest gave to the page, from WARC extension headers, or "".
    """

    url: str
    content_type: str
    charset: str | None
    body: bytes
    date: str = DEFAULT_DATE
    document: str = ""
    source: str = ""


def write_warc(path: Path, pages: Iterable[Page]) -> int:
    """Write response records, one gzip member each, and return their number. The same pages give the same bytes."""
    count = 0
    with open(path, "wb") as file:
        for page in pages:
            plain = io.BytesIO()
            _response(page).write(plain, checksum_data=True)
            file.write(gzip.compress(plain.getvalue(), compresslevel=6, mtime=0))
            count += 1
    return count


def read_warc(path: Path | str, limits: ReadConfig = ReadConfig()) -> Iterator[Page | Damage | PassedOver]:
    """Yield the records of a WARC file, in order: a Page for each 2xx HTML or plain text, a PassedOver for each other
    sound record, and a Damage for each part that is no sound record.

    Reading continues behind damage, so only the damaged record or gzip member is lost.
    """
    is_empty = True
    with open_binary(path) as file:
        for item in frames(chunks(file, limits, str(path)), limits):
            is_empty = False
            if isinstance(item, Lost):
                yield Damage(path, item.trouble, item.detail, item.offset)
            else:
                yield _page(item, path, limits)
    if is_empty:
        yield Damage(path, Trouble.NO_RECORD, "the file holds no record")


def _response(page: Page) -> WarcRecord:
    record = WarcRecord()
    record.init_headers(WarcRecordType.response)
    kind = page.content_type + (f"; charset={page.charset}" if page.charset else "")
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(page.body)}\r\n\r\n"
    record.headers["WARC-Target-URI"] = page.url
    record.headers["WARC-Date"] = page.date
    for header, value in ((_DOCUMENT, page.document), (_SOURCE, page.source)):
        if value:
            record.headers[header] = _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", value)
    # The id depends on the content, so that the same pages give the same bytes.
    record.headers["WARC-Record-ID"] = f"<{UUID(int=seed_for(0, page.url, zlib.crc32(page.body))).urn}>"
    record.headers["Content-Type"] = "application/http; msgtype=response"
    record.set_bytes_content(head.encode("ascii", "replace") + page.body)
    return record


class _Unsound(Exception):
    """A record that cannot be read."""

    def __init__(self, trouble: Trouble, detail: str) -> None:
        super().__init__(detail)
        self.trouble = trouble


def _page(frame: Frame, path: Path | str, limits: ReadConfig) -> Page | Damage | PassedOver:
    """Return the page in a record, or what is wrong with it, or the kind of record if it has no page."""
    kind = frame.head.get("WARC-Type").lower()
    if kind not in _WITH_PAGES:
        named = kind if kind in _OTHERS else "unknown" if kind else "not stated"
        return PassedOver(path, f"record type {named}")
    try:
        _check_digest(frame)
        is_http = frame.head.get("Content-Type").lower().startswith("application/http") or (
            kind == "response" and frame.block[:5].upper() == b"HTTP/"
        )
        found = _http_page(frame, limits) if is_http else _plain_page(frame)
    except _Unsound as error:
        return Damage(path, error.trouble, str(error), frame.offset)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        return Damage(path, Trouble.ENCODING, f"its body cannot be decoded: {error}", frame.offset)
    return PassedOver(path, found) if isinstance(found, str) else found


def _check_digest(frame: Frame) -> None:
    """Raise _Unsound if the record states a digest of its block, and the block has another."""
    name, stated = (part.strip() for part in f"{frame.head.get('WARC-Block-Digest')}:".split(":", 1))
    if name.lower() not in _DIGESTS:
        return
    digest = hashlib.new(name.lower(), frame.block, usedforsecurity=False).digest()
    stated = stated.rstrip("=:")
    base_32, base_64 = (encode(digest).decode().rstrip("=") for encode in (base64.b32encode, base64.b64encode))
    if stated.upper() != base_32 and stated.lower() != digest.hex() and stated != base_64:
        raise _Unsound(Trouble.DIGEST, "the record is not what was written: its block digest differs")


def _plain_page(frame: Frame) -> Page | str:
    stated, charset = _stated_type(frame.head.joined("Content-Type"))
    kind = stated or _sniffed(frame.block)
    if kind not in _READABLE:
        return "content type"
    if not frame.block:
        return "empty payload"
    return _page_of(frame, kind, charset, frame.block)


def _page_of(frame: Frame, kind: str, charset: str | None, body: bytes, document: str = "", source: str = "") -> Page:
    address = frame.head.get("WARC-Target-URI").strip("<>")
    return Page(address, kind, charset, body, frame.head.get("WARC-Date"), document, source)


def _http_page(frame: Frame, limits: ReadConfig) -> Page | str:
    if not frame.block:
        return "empty payload"
    status, head, body = _http_parts(frame.block)
    if not 200 <= status < 300:
        return "status"
    stated, charset = _stated_type(head.joined("Content-Type"))
    if stated and stated not in _READABLE:
        return "content type"
    if "chunked" in head.joined("Transfer-Encoding").lower():
        body = _unchunked(body)
    for name in reversed(_codings(f"{head.joined('Content-Encoding')},{head.joined('Transfer-Encoding')}")):
        body = _unpacked(body, name, limits)
    if not body:
        return "empty payload"
    kind = stated or _sniffed(body)
    if kind not in _READABLE:
        return "content type"
    own = (urllib.parse.unquote(frame.head.get(name)) for name in (_DOCUMENT, _SOURCE))
    return _page_of(frame, kind, charset, body, *own)


def _http_parts(block: bytes) -> tuple[int, Head, bytes]:
    """Return the status of an HTTP response, its head and its body. Interim responses (1xx) are skipped."""
    begin = len(block) - len(block.lstrip(b"\r\n"))
    while True:
        found = _STATUS.match(block[begin : begin + 40].decode("latin-1"))
        if found is None:
            raise _Unsound(Trouble.HEAD, f"it begins with {block[begin : begin + 20]!r}, not with an HTTP status")
        end = head_end(block, begin)
        head = None if end is None else parse_head(block[begin:end])
        if end is None or head is None:
            raise _Unsound(Trouble.HEAD, "its HTTP head does not end: no empty line stands before the body")
        if not 100 <= int(found[1]) < 200 or block[end : end + 5].upper() != b"HTTP/":
            return int(found[1]), head, block[end:]
        begin = end


def _stated_type(header: str) -> tuple[str, str | None]:
    """Return the media type and the charset that a header states. As in browsers, the last well-formed type counts.

    The type is "" if none is stated, or one that means that it is unknown.
    """
    types = [one for one in header.split(",") if _MEDIA_TYPE.fullmatch(one.partition(";")[0].strip())]
    charset = (_CHARSET.search(types[-1]) if types else None) or _CHARSET.search(header)
    kind = types[-1].partition(";")[0].strip().lower() if types else ""
    return "" if kind in _UNKNOWN_TYPES else kind, charset[1] if charset else None


def _sniffed(body: bytes) -> str:
    """Return the media type of a body whose type is not stated: HTML, plain text, or "" for anything else."""
    begin = body[:_SNIFFED_BYTES]
    if _TAG.search(begin):
        return _HTML
    return _TEXT_TYPE if begin.startswith(_UTF_16) or not _BINARY.search(begin) else ""


def _codings(header: str) -> list[str]:
    """Return the encodings of a body in order. Each may expand it to the limit, so there must be few."""
    names = [name.strip() for name in header.lower().split(",")]
    names = [name for name in names if name not in _PLAIN]
    if len(names) > _MAX_CODINGS:
        raise ValueError(f"it states {len(names)} encodings of its body, and at most {_MAX_CODINGS} are undone")
    return names


def _unpacked(body: bytes, name: str, limits: ReadConfig) -> bytes:
    codec = _CODECS.get(name)
    # Crawlers that unpack a body often keep its header. A body without gzip's first bytes is unpacked already.
    if not body or (codec == "gzip" and not body.startswith(b"\x1f\x8b")):
        return body
    try:
        if codec is None:
            raise ValueError(f"its Content-Encoding {name[:40]!r} is none of {', '.join(_CODECS)}")
        data = unpacked(body, codec, longest=limits.longest_bytes)
    except (OSError, EOFError, ValueError, zlib.error):
        if _TEXT.match(body) is None:
            raise
        return body  # unpacked already as well: it is text, and not what its header says
    if data is None:
        raise _Unsound(Trouble.BOMB, f"a body of {len(body)} bytes unpacks to more than {limits.longest_bytes}")
    return data


def _unchunked(body: bytes) -> bytes:
    """Return the data of HTTP chunks (RFC 9112, section 7.1), or the body itself if its chunks are joined already."""
    if _CHUNK.match(body) is None:
        return body
    parts: list[bytes] = []
    at = 0
    while (chunk := _CHUNK.match(body, at)) is not None:
        size = int(chunk[1], 16)
        if size == 0:
            return b"".join(parts)
        at = chunk.end() + size
        if at > len(body):
            raise EOFError(f"a chunk of {size} bytes is cut after {len(body) - chunk.end()}")
        parts.append(body[chunk.end() : at])
    if not body[at:].strip(b"\r\n"):  # whole, except for the empty chunk at the end
        return b"".join(parts)
    raise ValueError(f"no chunk begins at byte {at} of the body: {body[at : at + 12]!r}")
