"""Pages in WARC files: written one gzip member each, read with every kind of damage reported."""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from trivium.seeds import seed_for

_DOCUMENT, _SOURCE = "Trivium-Document", "Trivium-Source"
_WANTED = WarcRecordType.response | WarcRecordType.resource


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


@dataclass(frozen=True, slots=True)
class Damage:
    """Part of a file that could not be read: `records` of it if they can be counted, else 1."""

    path: Path
    reason: str
    records: int = 1


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


def read_warc(path: Path) -> Iterator[Page | Damage]:
    """Every 2xx HTML or plain-text response of a .warc or .warc.gz, in order; where reading ends early, a Damage."""
    number = 0
    held: Page | Damage | None = None  # a page is given out once what follows shows that it was whole
    problem: Exception | None = None
    with _open(path) as file:
        stream = _UpToDamage(file)
        try:
            for record in ArchiveIterator(
                stream, record_types=_WANTED, parse_http=False, stream_detect=False
            ):
                number += 1
                page = _page(record, path, number)
                if held is not None:
                    yield held
                held = None if isinstance(page, Damage) and stream.problem is not None else page
        except (OSError, EOFError, ValueError) as error:
            problem = error
    # A checksum that fails is read after the page it condemns.
    if held is not None and (problem is not None or not isinstance(stream.problem, OSError | zlib.error)):
        yield held
    problem = stream.problem or problem
    if problem is not None:
        yield Damage(path, f"damaged in or after record {number}: {' '.join(str(problem).split())}")
    elif number == 0:
        yield Damage(path, "it holds no WARC response record")


class _UpToDamage(io.RawIOBase):
    """A stream that ends where reading fails and remembers why, so that what came before is still used."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = cast(io.BufferedReader, file)
        self.problem: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        if self.problem is not None:
            return b""
        try:
            return self._file.read1(size)
        except (OSError, EOFError, zlib.error) as error:
            self.problem = error
            return b""

    def tell(self) -> int:
        return self._file.tell()


def _open(path: Path) -> BinaryIO:
    # Python's gzip checks every member's length and checksum, so a cut file cannot end silently.
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else open(path, "rb")  # type: ignore[return-value]


def _response(page: Page) -> WarcRecord:
    record = WarcRecord()
    record.init_headers(WarcRecordType.response)
    kind = page.content_type + (f"; charset={page.charset}" if page.charset else "")
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(page.body)}\r\n\r\n"
    record.headers["WARC-Target-URI"] = page.url
    record.headers["WARC-Date"] = page.date
    for header, value in ((_DOCUMENT, page.document), (_SOURCE, page.source)):
        if value:
            record.headers[header] = value
    # keyed by content, so that the same pages give the same bytes
    unique = f"{seed_for(0, page.url, zlib.crc32(page.body)):032x}"
    parts = (unique[:8], unique[8:12], unique[12:16], unique[16:20], unique[20:])
    record.headers["WARC-Record-ID"] = f"<urn:uuid:{'-'.join(parts)}>"
    record.headers["Content-Type"] = "application/http; msgtype=response"
    record.set_bytes_content(head.encode("ascii", "replace") + page.body)
    return record


def _page(record: WarcRecord, path: Path, number: int) -> Page | Damage | None:
    url = _header(record, "WARC-Target-URI").strip("<>")
    stated = int(_header(record, "Content-Length") or 0)
    record.freeze()
    if record.content_length != stated:
        return Damage(path, f"record {number} is cut: {record.content_length} of {stated} bytes")
    if _header(record, "WARC-Block-Digest") and not record.verify_block_digest():
        return Damage(path, f"record {number} is not what was written: its block digest differs")
    date = _header(record, "WARC-Date")
    if not record.is_http:
        kind = _header(record, "Content-Type").partition(";")[0].strip().lower()
        return Page(url, kind, None, record.reader.read(), date) if _readable(kind) else None
    try:
        return _http_page(record, url, date)
    except (OSError, EOFError, ValueError) as error:
        return Damage(path, f"record {number} cannot be decoded: {' '.join(str(error).split())}")


def _http_page(record: WarcRecord, url: str, date: str) -> Page | None:
    record.parse_http(auto_decode="all")
    status = record.http_headers.status_code if record.http_headers else None
    kind = (record.http_content_type or "text/html").lower()
    if not _readable(kind) or (status is not None and not 200 <= status < 300):
        return None
    own = (_header(record, _DOCUMENT), _header(record, _SOURCE))
    return Page(url, kind, record.http_charset, record.reader.read(), date, *own)


def _header(record: WarcRecord, name: str) -> str:
    return record.headers.get(name, "") or ""


def _readable(kind: str) -> bool:
    return kind in ("text/html", "application/xhtml+xml", "text/plain")
