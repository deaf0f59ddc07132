"""Raw input of any kind → documents, with everything unreadable reported, never passed over."""

import gzip
import json
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from trivium.corpus.document import Document
from trivium.corpus.extract import RAW, decode
from trivium.corpus.warc import Damage, Page, read_warc
from trivium.errors import DataError

SUFFIXES = (".txt", ".md", ".jsonl", ".jsonl.gz", ".warc", ".warc.gz")
_TEXT_FIELDS = ("text", "content", "body")


def input_files(path: Path) -> list[Path]:
    """The readable files at or under `path`, sorted; DataError when there are none."""
    if not path.exists():
        raise DataError(f"{path} does not exist; give a file or folder with {', '.join(SUFFIXES)} files")
    found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    files = [p for p in found if p.name.lower().endswith(SUFFIXES) and not p.name.startswith(".")]
    if not files:
        what = "is not one of" if path.is_file() else "holds no file ending in one of"
        raise DataError(f"{path} {what} {', '.join(SUFFIXES)}; convert the texts to one of these")
    return files


def read_any(path: Path, *, source: str, longest: int | None = None) -> Iterator[Document | Damage]:
    """The documents of one file, HTML not yet extracted (metadata `raw`), and a Damage for each unreadable part.

    A text file longer than `longest` characters is cut at paragraphs into several documents.
    """
    name = path.name.lower()
    try:
        if path.stat().st_size == 0:
            yield Damage(path, "it is empty (0 bytes)")
        elif name.endswith((".warc", ".warc.gz")):
            yield from _read_pages(path, source)
        elif name.endswith((".jsonl", ".jsonl.gz")):
            yield from _read_lines(path, source)
        else:
            yield from _read_text(path, source, longest)
    except OSError as error:
        yield Damage(path, f"it cannot be read: {error.strerror or error}")


def page_document(page: Page, *, source: str) -> Document:
    """A fetched page as a document, its HTML not yet extracted."""
    metadata = {"url": page.url, "date": page.date}
    if page.content_type != "text/plain":
        metadata[RAW] = "html"
    identity = page.document or _digest(page.url or page.body.hex())
    return Document(identity, decode(page.body, page.charset), page.source or source, metadata)


def paragraphs_of(text: str, *, longest: int) -> Iterator[str]:
    """`text` cut at blank lines into pieces of at most `longest` characters where paragraphs allow it."""
    held: list[str] = []
    size = 0
    for paragraph in text.replace("\r\n", "\n").split("\n\n"):
        if held and size + len(paragraph) > longest:
            yield "\n\n".join(held)
            held, size = [], 0
        held.append(paragraph)
        size += len(paragraph) + 2
    yield "\n\n".join(held)


def _read_pages(path: Path, source: str) -> Iterator[Document | Damage]:
    for page in read_warc(path):
        yield page if isinstance(page, Damage) else page_document(page, source=source)


def _read_text(path: Path, source: str, longest: int | None) -> Iterator[Document | Damage]:
    text = decode(path.read_bytes(), None)
    if text.count("\x00") + text.count("\ufffd") > len(text) // 100:
        yield Damage(path, "it is not text: more than 1 % of its characters cannot be decoded")
        return
    pieces = [p for p in paragraphs_of(text, longest=longest or len(text)) if p.strip()]
    if not pieces:
        yield Damage(path, "it holds nothing but blanks")
    for number, piece in enumerate(pieces):
        yield Document(_digest(source, path.name, str(number), piece), piece, source, {"file": path.name})


def _read_lines(path: Path, source: str) -> Iterator[Document | Damage]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.name.lower().endswith(".gz") else open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _line_document(line, path, source, number)
    except (EOFError, OSError, zlib.error) as error:
        yield Damage(path, f"unreadable after line {number}: {' '.join(str(error).split())}")
        return
    if number == 0:
        yield Damage(path, "it holds no line")


def _line_document(line: bytes, path: Path, source: str, number: int) -> Document | Damage:
    try:
        row = json.loads(line)
    except ValueError:
        return Damage(path, f"line {number} is not JSON")
    text = next((row[k] for k in _TEXT_FIELDS if isinstance(row.get(k), str)), None) if _is_row(row) else None
    if text is None:
        return Damage(path, f"line {number} has no text under any of: {', '.join(_TEXT_FIELDS)}")
    metadata = row.get("metadata")
    return Document(
        str(row["id"]) if isinstance(row.get("id"), str | int) else _digest(source, str(number), text),
        text,
        row["source"] if isinstance(row.get("source"), str) and row["source"] else source,
        metadata if isinstance(metadata, dict) else {"url": row["url"]} if "url" in row else {},
    )


def _is_row(row: Any) -> bool:
    return isinstance(row, dict)


def _digest(*parts: str) -> str:
    return blake2b("\x1f".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
