"""Pages in WARC files: written one gzip member each, read with every kind of damage reported."""

import gzip
import io
import re
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from trivium.corpus.config import ReadConfig
from trivium.corpus.quarantine import Damage, Intake, Trouble
from trivium.corpus.streams import Lost, chunks, open_binary, unpacked
from trivium.corpus.warc_frames import Frame, frames
from trivium.seeds import seed_for

_DOCUMENT, _SOURCE = "Trivium-Document", "Trivium-Source"
_NOT_IN_HEADERS = re.compile(r"[%\x00-\x1f\x7f]|^ | $|(?<= ) ")  # readers join lines and blanks
_TYPE = re.compile(rb"^warc-type:[ \t]*(\w+)", re.I | re.M)
_WANTED = (b"response", b"resource", b"conversion")  # conversion: the text records of WET files
_CODECS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "br": "br", "zstd": "zstd"}
_MOST_CODINGS = 5  # as of curl; servers use one
_DIGESTS = ("sha1:", "sha256:", "sha512:", "md5:")
_CHARSET = re.compile(
    r"charset\s*+=\s*+[\"']?\s*+([\w.:-]{1,40})", re.I
)  # possessive: blanks are passed once
_TEXT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<[!?a-zA-Z]|[\t\n\r -~]{64})")  # how pages and texts begin
_CHUNK = re.compile(rb"\s*([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")


@dataclass(frozen=True, slots=True)
class Page:
    """One response: its address, what the server called it, the body's bytes (content encodings undone).

    document, source: an id and a source given to the page before, kept in WARC extension headers; else empty.
    """

    url: str
    content_type: str
    charset: str | None
    body: bytes
    date: str = "2021-01-15T00:00:00Z"
    document: str = ""
    source: str = ""


def write_warc(path: Path, pages: Iterable[Page]) -> int:
    """Write response records, one gzip member each, byte for byte reproducible; returns how many."""
    count = 0
    with open(path, "wb") as file:
        for page in pages:
            plain = io.BytesIO()
            _response(page).write(plain, checksum_data=True)
            file.write(gzip.compress(plain.getvalue(), compresslevel=6, mtime=0))
            count += 1
    return count


def read_warc(
    path: Path | str, limits: ReadConfig = ReadConfig(), intake: Intake | None = None
) -> Iterator[Page | Damage]:
    """Every 2xx HTML or plain-text record of a WARC file, in order, and a Damage for each part that is none.

    Reading goes on after damage: what is lost is the damaged record or gzip member alone. `intake` counts the
    records, those passed over among them.
    """
    counts = intake if intake is not None else Intake()
    before = counts.seen
    with open_binary(path) as file:
        for item in frames(chunks(file, limits, str(path)), limits):
            counts.seen += 1
            if isinstance(item, Lost):
                found: Page | Damage | str = Damage(path, item.trouble, item.detail, item.offset)
            else:
                found = _page(item, path, limits)
            if isinstance(found, str):
                counts.passed_over[found] += 1
                continue
            if isinstance(found, Damage):
                counts.quarantined[found.trouble] += 1
            else:
                counts.documents += 1
            yield found
    if counts.seen == before:
        counts.seen += 1
        counts.quarantined[Trouble.NO_RECORD] += 1
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
            record.headers[header] = _NOT_IN_HEADERS.sub(lambda found: f"%{ord(found[0]):02X}", value)
    # keyed by content, so that the same pages give the same bytes
    unique = f"{seed_for(0, page.url, zlib.crc32(page.body)):032x}"
    parts = (unique[:8], unique[8:12], unique[12:16], unique[16:20], unique[20:])
    record.headers["WARC-Record-ID"] = f"<urn:uuid:{'-'.join(parts)}>"
    record.headers["Content-Type"] = "application/http; msgtype=response"
    record.set_bytes_content(head.encode("ascii", "replace") + page.body)
    return record


def _page(frame: Frame, path: Path | str, limits: ReadConfig) -> Page | Damage | str:
    """The page in a record, what is wrong with it, or why it is none."""
    kind = _TYPE.search(frame.head)
    if kind is None or kind[1].lower() not in _WANTED:
        return f"record type {kind[1].lower().decode() if kind else 'not stated'}"
    try:
        archive = ArchiveIterator(io.BytesIO(frame.record), parse_http=False, stream_detect=False)
        record = next(archive)
        record.freeze()
    except (StopIteration, OSError, EOFError, ValueError) as error:
        return Damage(path, Trouble.NOT_A_RECORD, f"its header cannot be read: {error}", frame.offset)
    digest = _header(record, "WARC-Block-Digest")
    if digest.lower().startswith(_DIGESTS) and not record.verify_block_digest():
        what = "the record is not what was written: its block digest differs"
        return Damage(path, Trouble.DIGEST, what, frame.offset)
    try:
        return _http_page(record, limits) if record.is_http else _plain_page(record)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        return Damage(path, Trouble.ENCODING, f"its body cannot be decoded: {error}", frame.offset)
    except _Unpacked as error:
        return Damage(path, Trouble.BOMB, str(error), frame.offset)


class _Unpacked(Exception):
    """A body that unpacks to more than the limit."""


def _plain_page(record: WarcRecord) -> Page | str:
    kind, _, parameters = _header(record, "Content-Type").partition(";")
    kind, charset = kind.strip().lower(), _CHARSET.search(parameters)
    if not _readable(kind):
        return "content type"
    name = charset[1] if charset else None
    return Page(_address(record), kind, name, record.reader.read(), _header(record, "WARC-Date"))


def _http_page(record: WarcRecord, limits: ReadConfig) -> Page | str:
    record.parse_http(auto_decode="none")
    headers = record.http_headers
    status = headers.status_code if headers else None
    if status is not None and not 200 <= status < 300:
        return "status"
    kind = (record.http_content_type or "text/html").lower()
    if not _readable(kind):
        return "content type"
    body = record.reader.read()
    if headers is not None:
        if "chunked" in (headers.get("Transfer-Encoding") or "").lower():
            body = _unchunked(body)
        for name in reversed(_codings(headers.get("Content-Encoding") or "")):
            body = _unpacked(body, name, limits)
    own = (urllib.parse.unquote(_header(record, name)) for name in (_DOCUMENT, _SOURCE))
    return Page(_address(record), kind, record.http_charset, body, _header(record, "WARC-Date"), *own)


def _codings(header: str) -> list[str]:
    """What a body was packed by, in order. Each can give the most that is allowed, so there must be few."""
    names = [name.strip() for name in header.lower().split(",")]
    if len(names) > _MOST_CODINGS:
        raise ValueError(
            f"it states {len(names)} encodings of its body, and at most {_MOST_CODINGS} are undone"
        )
    return names


def _unpacked(body: bytes, name: str, limits: ReadConfig) -> bytes:
    codec = _CODECS.get(name)
    # Crawlers that unpack a body often leave its header; a body without gzip's first bytes was unpacked.
    if codec is None or not body or (codec == "gzip" and not body.startswith(b"\x1f\x8b")):
        return body
    try:
        data = unpacked(body, codec, longest=limits.longest_bytes)
    except (OSError, EOFError, zlib.error):
        if _TEXT.match(body) is None:
            raise
        return body  # so was one that reads as text and not as what its header says
    if data is None:
        raise _Unpacked(f"a body of {len(body)} bytes unpacks to more than {limits.longest_bytes}")
    return data


def _unchunked(body: bytes) -> bytes:
    """The data of HTTP chunks (RFC 9112, section 7.1); a body that was joined already is given back as it is."""
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
    if not body[at:].strip(b"\r\n"):  # whole, but for the empty chunk that ends it
        return b"".join(parts)
    raise ValueError(f"no chunk begins at byte {at} of the body: {body[at : at + 12]!r}")


def _address(record: WarcRecord) -> str:
    return _header(record, "WARC-Target-URI").strip("<>")


def _header(record: WarcRecord, name: str) -> str:
    return record.headers.get(name, "") or ""


def _readable(kind: str) -> bool:
    return kind in ("text/html", "application/xhtml+xml", "text/plain")
