"""Raw input of any kind → documents, with everything unreadable set aside, never passed over in silence."""

from collections.abc import Collection, Iterator
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import RAW, Damage, Document, PassedOver, Trouble
from trivium.corpus.files import LINES, PAGES, PARQUET, kind_name, name_of, shown
from trivium.corpus.read.cutting import CUT_FROM, paragraphs_of, pieces_of
from trivium.corpus.read.encoding import Decoder, decode
from trivium.corpus.read.lines import parsed, rows_of, text_of
from trivium.corpus.read.streams import Lost, chunks, open_binary
from trivium.corpus.read.warc import Page, read_warc

_OWN_FIELDS = ("id", "source", RAW)  # of a row, beside its text; what else it says becomes metadata
_ROWS = 8  # of a Parquet file read at once: one stored text of the largest size can stand in all of them
_MOST_SETTINGS = 1000  # rows without a text that a file of settings may have
_BLOCK = 4 << 20  # bytes of a text file decoded at once


def read_any(
    path: Path | str,
    *,
    source: str,
    longest: int | None = None,
    limits: ReadConfig = ReadConfig(),
) -> Iterator[Document | Damage | PassedOver]:
    """Yield the documents of one file, a Damage for each unreadable part, and a PassedOver for each sound record that
    is no document.

    HTML is not extracted yet (metadata `raw`). A text longer than `longest` characters is cut into several documents,
    whatever kind of file it stands in; a page of HTML is not, because its text is not known yet. Memory stays within a
    few times `limits.longest_bytes`, whatever the file's size.
    """
    name = kind_name(path)
    try:
        if name.endswith(PAGES) and not _is_empty(path):
            for page in read_warc(path, limits):
                found = page_document(page, source=source) if isinstance(page, Page) else page
                yield from _in_pieces(found, longest)
            return
        for item in _items(path, name, source, longest, limits):
            yield from _in_pieces(item, longest)
    except OSError as error:
        yield Damage(path, Trouble.UNREADABLE, f"it cannot be read: {error.strerror or error}")


def page_document(page: Page, *, source: str) -> Document:
    """A fetched page as a document, its HTML not yet extracted."""
    metadata = {"url": page.url, "date": page.date}
    if page.content_type != "text/plain":
        metadata[RAW] = "html"
    # an address is fetched more than once, and each time gives a document
    body = blake2b(page.body, digest_size=8).hexdigest()
    identity = page.document or _digest(page.url, page.date, body)
    return Document(identity, decode(page.body, page.charset), page.source or source, metadata)


def _in_pieces(
    item: Document | Damage | PassedOver, longest: int | None
) -> Iterator[Document | Damage | PassedOver]:
    if longest is None or not isinstance(item, Document) or RAW in item.metadata:
        yield item
    else:
        yield from pieces_of(item, longest=longest)


def _items(
    path: Path | str, name: str, source: str, longest: int | None, limits: ReadConfig
) -> Iterator[Document | Damage | PassedOver]:
    if _is_empty(path):
        yield Damage(path, Trouble.EMPTY, "the file has 0 bytes")
        return
    with open_binary(path) as file:
        if name.endswith(PARQUET):
            yield from _read_parquet(file, path, source, limits)
        elif name.endswith(LINES):
            items = _read_lines(file, path, source, limits)
            yield from _unless_settings(items, path, limits) if name.endswith(".json") else items
        else:
            yield from _read_text(file, path, source, longest, limits)


def _read_lines(
    file: BinaryIO, path: Path | str, source: str, limits: ReadConfig
) -> Iterator[Document | Damage]:
    nothing = True
    for found in rows_of(chunks(file, limits, str(path)), limits):
        nothing = False
        if isinstance(found, Lost):
            yield Damage(path, found.trouble, found.detail, found.offset)
        else:
            yield _row_document(found, source, limits)
    if nothing:
        yield Damage(path, Trouble.NO_LINE, "the file holds no line")


def _unless_settings(
    items: Iterator[Document | Damage], path: Path | str, limits: ReadConfig
) -> Iterator[Document | Damage | PassedOver]:
    """The same, but of a sound `.json` file without any text that it was passed over: it may be one of a thousand
    things, such as the settings that lie beside a corpus."""
    held: list[Damage] = []
    for item in items:
        if isinstance(item, Damage) and item.trouble == Trouble.NO_TEXT and len(held) < _MOST_SETTINGS:
            held.append(item)
            continue
        yield from chain(held, [item], items)
        return
    yield PassedOver(path, f"JSON without {' or '.join(limits.text)} (harvest.read.text)")


def _read_parquet(
    file: BinaryIO, path: Path | str, source: str, limits: ReadConfig
) -> Iterator[Document | Damage]:
    """Rows of a Parquet file; a row group that cannot be read is lost alone."""
    try:
        table = pq.ParquetFile(file, page_checksum_verification=True)
        texts = {part for name in limits.text for part in (name, name.partition(".")[0])}
        columns = [
            field.name
            for field in table.schema_arrow
            if field.name in {*texts, *_OWN_FIELDS, "metadata"} or _is_plain(field.type)
        ]
        groups = [table.metadata.row_group(n).num_rows for n in range(table.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        yield Damage(path, Trouble.PARQUET, f"its footer cannot be read: {error}")
        return
    if not texts & set(columns):
        what = f"no column is called any of: {', '.join(limits.text)} (harvest.read.text)"
        yield Damage(path, Trouble.NO_TEXT, what)
        return
    row = 0
    for number, rows in enumerate(groups):
        read = held = 0
        packed, unpacked = _sizes(table.metadata.row_group(number), columns)
        most = max(limits.longest_bytes, limits.unpacked_ratio * packed)
        if unpacked > most:
            what = f"row group {number}: {packed} bytes unpack to {unpacked}"
            yield Damage(path, Trouble.BOMB, what, row, max(rows, 1))
            row += rows
            continue
        try:
            for batch in table.iter_batches(batch_size=_ROWS, row_groups=[number], columns=columns):
                held += sum(map(_bytes_of, batch.columns))
                if held > most:
                    what = f"row group {number}: {packed} bytes unpack to {held} and more by row {row + read}"
                    yield Damage(path, Trouble.BOMB, what, row + read, rows - read)
                    break
                names = batch.schema.names
                for values in zip(*map(_of_json, batch.columns), strict=True):
                    scalars = dict(zip(names, values, strict=True))
                    found = _parquet_document(scalars, path, source, limits, row + read)
                    if isinstance(found, Document) and found.text_bytes > limits.longest_bytes:
                        what = (
                            f"row {row + read} has {found.text_bytes} bytes; the limit is {limits.longest_bytes} "
                            "(harvest.read.longest_bytes)"
                        )
                        found = Damage(path, Trouble.TOO_LONG, what, row + read)
                    yield found
                    read += 1
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            yield Damage(
                path, Trouble.PARQUET, f"row group {number}: {error}", row + read, max(rows - read, 1)
            )
        row += rows


def _sizes(group: pq.RowGroupMetaData, columns: Collection[str]) -> tuple[int, int]:
    """Bytes of the columns of a row group as they are stored, and as its footer says they are unpacked."""
    told = [group.column(number) for number in range(group.num_columns)]
    read = [one for one in told if one.path_in_schema.partition(".")[0] in columns]
    return sum(one.total_compressed_size for one in read), sum(one.total_uncompressed_size for one in read)


def _bytes_of(column: pa.Array) -> int:
    """Bytes of the values of a column's rows. A footer counts an entry of a dictionary once, whatever refers to it."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    return pc.sum(pc.take(pc.binary_length(column.dictionary), column.indices)).as_py() or 0


def _parquet_document(
    scalars: dict[str, Any], path: Path | str, source: str, limits: ReadConfig, row: int
) -> Document | Damage:
    try:
        values = {name: scalar.as_py() for name, scalar in scalars.items()}
        of_text = {part for field in limits.text for part in (field, field.partition(".")[0])}
        values |= {name: _as_text(values[name]) for name in of_text & values.keys()}
    except UnicodeDecodeError as error:
        return Damage(path, Trouble.NOT_UTF8, f"row {row} is not UTF-8: {error.reason}", row)
    if text_of(values, limits.text) is None:
        return Damage(path, Trouble.NO_TEXT, f"row {row} has no text", row)
    if isinstance(values.get("metadata"), str):  # as in a document store
        try:
            values["metadata"] = parsed(values["metadata"].encode())
        except (ValueError, RecursionError):
            values["metadata"] = {"metadata": values["metadata"]}
    else:
        values["metadata"] = _in_json(values.get("metadata"))
    return _row_document({k: v for k, v in values.items() if v is not None}, source, limits)


def _as_text(value: Any) -> Any:
    """A text, or a field with texts in it, also where they are stored as bytes, as writers without strings do."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, dict):
        return {name: _as_text(one) for name, one in value.items()}
    return value


def _read_text(
    file: BinaryIO, path: Path | str, source: str, longest: int | None, limits: ReadConfig
) -> Iterator[Document | Damage]:
    decoder, pending, number, is_cut = Decoder(), "", 0, False
    for block, last in _blocks(file, limits, str(path)):
        if isinstance(block, Lost):
            yield Damage(path, block.trouble, block.detail, block.offset)
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
            identity = _digest(source, name_of(path), str(number), piece)
            told: dict[str, Any] = {"file": shown(name_of(path))}
            if is_cut:
                told[CUT_FROM] = {"id": _digest(source, name_of(path)), "piece": number}
            yield Document(identity, piece, source, told)
            number += 1
    if number == 0:
        yield Damage(path, Trouble.BLANK, "the file holds nothing but blanks")


def _blocks(file: BinaryIO, limits: ReadConfig, name: str) -> Iterator[tuple[bytes | Lost, bool]]:
    """The bytes of a text file in blocks, and whether each is the last before the end, or before a part that is lost:
    text that it breaks off is not one with what follows."""
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


def _row_document(row: dict[str, Any], source: str, limits: ReadConfig) -> Document:
    text = text_of(row, limits.text) or ""
    # of a field that holds the text in it nothing is kept, or the text would be there twice
    own = {*_OWN_FIELDS, *limits.text, *(name.partition(".")[0] for name in limits.text)}
    metadata = {name: value for name, value in row.items() if name not in own}
    if isinstance(metadata.get("metadata"), dict):
        metadata |= metadata.pop("metadata")
    metadata.pop(RAW, None)  # ours, for a page yet to be extracted; a row holds text, whatever else it says
    named = row["source"] if isinstance(row.get("source"), str) and row["source"] else source
    identity = str(row["id"]) if isinstance(row.get("id"), str | int) else _digest(named, text)
    return Document(identity, text, named, metadata)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of this type can stand in JSON, as they are or as text."""
    kinds = pa.types
    return bool(
        _is_string(kind)
        or (kinds.is_dictionary(kind) and _is_string(kind.value_type))
        or kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_boolean(kind)
        or kinds.is_time(kind)
        or kinds.is_date(kind)
        or (kinds.is_timestamp(kind) and kind.tz is None)  # a zone takes a database of zones
    )


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _of_json(column: pa.Array) -> pa.Array:
    if pa.types.is_float16(column.type):
        return column.cast(pa.float32())
    return column.cast(pa.string()) if pa.types.is_temporal(column.type) else column


def _in_json(value: Any) -> Any:
    """A value of nested columns as plain data: what JSON has no word for, such as times, as text."""
    if isinstance(value, dict):
        return {str(name): _in_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_in_json, value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _is_empty(path: Path | str) -> bool:
    with open_binary(path) as file:
        return not file.read(1)


def _digest(*parts: str) -> str:
    return blake2b("\x1f".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
