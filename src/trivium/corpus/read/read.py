"""Read files of any kind as documents. Everything unreadable is set aside with its reason and place."""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import RAW, Damage, Document, PassedOver, Trouble
from trivium.corpus.read.cutting import CUT_FROM, paragraphs_of, pieces_of
from trivium.corpus.read.encoding import Decoder, decode
from trivium.corpus.read.files import LINES, PAGES, PARQUET, kind_name, name_of, shown
from trivium.corpus.read.lines import digest_of, row_document, rows_of
from trivium.corpus.read.parquet import read_parquet
from trivium.corpus.read.streams import Lost, chunks, open_binary
from trivium.corpus.read.warc import Page, read_warc

_MAX_ROWS_OF_SETTINGS = 1000  # rows without a text in a file that is counted as settings
_BLOCK = 4 << 20  # bytes of a text file decoded at once

Item = Document | Damage | PassedOver


def read_any(
    path: Path | str,
    *,
    source: str,
    longest: int | None = None,
    cut_rows: bool = True,
    limits: ReadConfig = ReadConfig(),
) -> Iterator[Item]:
    """Yield the documents of one file, a Damage for each unreadable part, and a PassedOver for each sound record that
    is no document.

    HTML is not extracted yet (metadata `raw`). A text longer than `longest` characters is cut into several documents,
    whatever kind of file contains it, or only in text files without `cut_rows`. A page of HTML is not cut, because its
    text is not known yet. `ReadConfig` bounds the memory, whatever the file's size.
    """
    try:
        for item in _items(path, source, longest, limits):
            if longest is None or not cut_rows or not isinstance(item, Document) or RAW in item.metadata:
                yield item
            else:
                yield from pieces_of(item, longest=longest)
    except OSError as error:
        yield Damage(path, Trouble.UNREADABLE, f"it cannot be read: {error.strerror or error}")


def _items(path: Path | str, source: str, longest: int | None, limits: ReadConfig) -> Iterator[Item]:
    name = kind_name(path)
    with open_binary(path) as file:
        if not file.read(1):
            yield Damage(path, Trouble.EMPTY, "the file has 0 bytes")
            return
        file.seek(0)
        if name.endswith(PAGES):
            for page in read_warc(path, limits):
                yield _page_document(page, source) if isinstance(page, Page) else page
        elif name.endswith(PARQUET):
            yield from read_parquet(file, path, source, limits)
        elif name.endswith(LINES):
            items = _read_lines(file, path, source, limits)
            yield from _unless_settings(items, path, limits) if name.endswith(".json") else items
        else:
            yield from _read_text(file, path, source, longest, limits)


def _page_document(page: Page, source: str) -> Document:
    metadata = {"url": page.url, "date": page.date}
    if page.content_type != "text/plain":
        metadata[RAW] = "html"
    # An address may be fetched more than once, and each fetch is a document.
    identity = page.document or digest_of(page.url, page.date, blake2b(page.body, digest_size=8).hexdigest())
    return Document(identity, decode(page.body, page.charset), page.source or source, metadata)


def _read_lines(file: BinaryIO, path: Path | str, source: str, limits: ReadConfig) -> Iterator[Document | Damage]:
    found = None
    for found in rows_of(chunks(file, limits, str(path)), limits):
        if isinstance(found, Lost):
            yield Damage(path, *found)
        else:
            yield row_document(found, source, limits)
    if found is None:
        yield Damage(path, Trouble.NO_LINE, "the file holds no line")


def _unless_settings(items: Iterator[Document | Damage], path: Path | str, limits: ReadConfig) -> Iterator[Item]:
    """Yield the same items, but one PassedOver for a sound `.json` file without any text.

    Such a file may be anything, for example settings beside a corpus.
    """
    held: list[Document | Damage] = []
    for item in items:
        held.append(item)
        is_document = isinstance(item, Document) or item.trouble != Trouble.NO_TEXT
        if is_document or len(held) > _MAX_ROWS_OF_SETTINGS:
            yield from chain(held, items)
            return
    yield PassedOver(path, f"JSON without {' or '.join(limits.text)} (harvest.read.text)")


def _read_text(
    file: BinaryIO, path: Path | str, source: str, longest: int | None, limits: ReadConfig
) -> Iterator[Document | Damage]:
    decoder, pending, number, is_cut = Decoder(), "", 0, False
    for block, last in _blocks(file, limits, str(path)):
        if isinstance(block, Lost):
            yield Damage(path, *block)
            decoder = Decoder()
            continue
        text = decoder.decode(block, last=last)
        if text.count("\x00") + text.count("\ufffd") > len(text) // 100:
            yield Damage(path, Trouble.NOT_TEXT, "more than 1 % of its characters cannot be decoded")
            return
        pieces = list(paragraphs_of(pending + text, longest=longest or limits.longest_bytes))
        too_many = longest is None and len(pieces) > 1
        is_cut = is_cut or not last or len(pieces) > 1
        pending = "" if last else pieces.pop()
        if too_many or max(map(len, (*pieces, pending))) > limits.longest_bytes:
            what = f"more than {limits.longest_bytes} characters in one piece (harvest.read.longest_bytes)"
            yield Damage(path, Trouble.TOO_LONG, what)
            return
        for piece in filter(str.strip, pieces):
            metadata: dict[str, Any] = {"file": shown(name_of(path))}
            if is_cut:
                metadata[CUT_FROM] = {"id": digest_of(source, name_of(path)), "piece": number}
            yield Document(digest_of(source, name_of(path), str(number), piece), piece, source, metadata)
            number += 1
    if number == 0:
        yield Damage(path, Trouble.BLANK, "the file holds nothing but blanks")


def _blocks(file: BinaryIO, limits: ReadConfig, name: str) -> Iterator[tuple[bytes | Lost, bool]]:
    """Yield the bytes of a text file in blocks, and whether each is the last before the end or a lost part.

    The text before a lost part is not continued by the text behind it.
    """
    held = bytearray()
    for part in chunks(file, limits, name):
        if isinstance(part, Lost):
            yield bytes(held), True
            held.clear()
            yield part, False
            continue
        if len(held) >= _BLOCK:
            yield bytes(held), False
            held.clear()
        held += part.data
    yield bytes(held), True
