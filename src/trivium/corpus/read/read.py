"""Raw input of any kind → documents, with everything unreadable set aside, never passed over in silence."""

from collections.abc import Collection, Iterator
from hashlib import blake2b
from io import SEEK_END
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import RAW, Damage, Document, PassedOver, Trouble
from trivium.corpus.read.cutting import CUT_FROM, paragraphs_of, pieces_of
from trivium.corpus.read.encoding import Decoder, decode
from trivium.corpus.read.files import LINES, PAGES, PARQUET, kind_name, name_of, shown
from trivium.corpus.read.lines import parsed, rows_of, text_of
from trivium.corpus.read.parquet_headers import declared, footer_problem
from trivium.corpus.read.streams import Lost, chunks, open_binary
from trivium.corpus.read.warc import Page, read_warc

_OWN_FIELDS = ("id", "source", RAW)  # of a row, beside its text; what else it says becomes metadata
_ROWS = 8  # of a Parquet file read at once: one stored text of the largest size can stand in all of them
_ROW_BYTES = 64  # that a row counts at least: pages of nulls take a bit for a row, or none
_MOST_SETTINGS = 1000  # rows without a text that a file of settings may have
_BLOCK = 4 << 20  # bytes of a text file decoded at once


def read_any(
    path: Path | str, *, source: str, longest: int | None = None, limits: ReadConfig = ReadConfig()
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
    """Return a fetched page as a document, its HTML not yet extracted."""
    metadata = {"url": page.url, "date": page.date}
    if page.content_type != "text/plain":
        metadata[RAW] = "html"
    # an address is fetched more than once, and each time gives a document
    body = blake2b(page.body, digest_size=8).hexdigest()
    identity = page.document or _digest(page.url, page.date, body)
    return Document(identity, decode(page.body, page.charset), page.source or source, metadata)


def _in_pieces(item: Document | Damage | PassedOver, longest: int | None) -> Iterator[Document | Damage | PassedOver]:
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


def _read_lines(file: BinaryIO, path: Path | str, source: str, limits: ReadConfig) -> Iterator[Document | Damage]:
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


class _Table(NamedTuple):
    """An open Parquet file. columns, numbers: what is read of it, fields by their names and leaves by their numbers.
    rows: of each row group, by the footer."""

    file: BinaryIO
    parquet: pq.ParquetFile
    columns: list[str]
    numbers: set[int]
    rows: list[int]


def _read_parquet(file: BinaryIO, path: Path | str, source: str, limits: ReadConfig) -> Iterator[Document | Damage]:
    """Rows of a Parquet file; a row group that cannot be read is lost alone."""
    texts = {part for name in limits.text for part in (name, name.partition(".")[0])}
    try:
        if problem := footer_problem(file):
            yield Damage(path, Trouble.BOMB, problem)
            return
        table = _opened_parquet(file, texts)
    except (pa.ArrowException, OSError, ValueError, IndexError, MemoryError) as error:
        yield Damage(path, Trouble.PARQUET, f"its footer cannot be read: {error}")
        return
    if not texts & set(table.columns):
        what = f"no column is called any of: {', '.join(limits.text)} (harvest.read.text)"
        yield Damage(path, Trouble.NO_TEXT, what)
        return
    first = 0
    for number, rows in enumerate(table.rows):
        yield from _read_group(table, number, first, path, source, limits)
        first += rows


def _opened_parquet(file: BinaryIO, texts: Collection[str]) -> _Table:
    """Raises ValueError where row groups share bytes, so that a small file has any number of rows."""
    table = pq.ParquetFile(file, page_checksum_verification=True)
    known = table.metadata
    leaves = [table.schema.column(number) for number in range(len(table.schema))]
    # Lists keep their dictionaries: one stored text may stand in all of their values.
    lists = [one.path for one in leaves if one.max_repetition_level and one.physical_type == "BYTE_ARRAY"]
    if lists:
        table = pq.ParquetFile(file, metadata=known, read_dictionary=lists, page_checksum_verification=True)
    wanted = {*texts, *_OWN_FIELDS, "metadata"}
    columns = [field.name for field in table.schema_arrow if field.name in wanted or _is_plain(field.type)]
    numbers = {number for number, one in enumerate(leaves) if one.path.partition(".")[0] in columns}
    groups = [known.row_group(number) for number in range(known.num_row_groups)]
    stored = sum(group.column(number).total_compressed_size for group in groups for number in numbers)
    if stored > (size := file.seek(0, SEEK_END)):
        raise ValueError(f"its row groups have {stored} bytes, and the file has {size}")
    return _Table(file, table, columns, numbers, [group.num_rows for group in groups])


def _read_group(
    table: _Table, number: int, first: int, path: Path | str, source: str, limits: ReadConfig
) -> Iterator[Document | Damage]:
    """Yield the rows of a row group, of which the first has this number in the file."""
    read, rows = 0, table.rows[number]

    def lost(trouble: Trouble, what: str) -> Damage:
        return Damage(path, trouble, f"row group {number}: {what}", first + read, max(rows - read, 1))

    try:
        known, held = table.parquet.metadata.row_group(number), 0
        chunks = [known.column(leaf) for leaf in table.numbers]
        packed = sum(chunk.total_compressed_size for chunk in chunks)
        unpacked = sum(chunk.total_uncompressed_size for chunk in chunks)
        most = max(limits.longest_bytes, limits.unpacked_ratio * packed)
        told = declared(table.file, table.parquet, number, table.numbers)
        rows = min(rows, told.rows)
        if (unpacked := max(unpacked, told.unpacked) + told.beside) > most:
            yield lost(Trouble.BOMB, f"{packed} bytes unpack to {unpacked}")
            return
        for batch in table.parquet.iter_batches(_ROWS, row_groups=[number], columns=table.columns):
            held += sum(map(_bytes_of, batch.columns)) + _ROW_BYTES * batch.num_rows
            if held > most:
                what = f"{packed} bytes unpack to {held} and more by row {first + read}"
                yield lost(Trouble.BOMB, what)
                return
            names = batch.schema.names
            for values in zip(*map(_of_json, batch.columns), strict=True):
                scalars = dict(zip(names, values, strict=True))
                yield _parquet_document(scalars, path, source, limits, first + read)
                read += 1
        if read < table.rows[number]:
            rows = read + 1
            yield lost(Trouble.PARQUET, f"it has {read} rows, and its footer says {table.rows[number]}")
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        yield lost(Trouble.PARQUET, str(error))


def _bytes_of(column: pa.Array) -> int:
    """Bytes of the values of a column's rows. A footer counts an entry of a dictionary once, whatever refers to it."""
    if pa.types.is_struct(column.type):
        return sum(map(_bytes_of, column.flatten()))
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return int(column.nbytes) + _bytes_of(column.flatten())
    if pa.types.is_map(column.type):
        first, stop = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return sum(_bytes_of(part[first:stop]) for part in (column.keys, column.items))
    if not pa.types.is_dictionary(column.type) or not _is_binary(column.type.value_type):
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
    found = _row_document({k: v for k, v in values.items() if v is not None}, source, limits)
    if found.text_bytes > limits.longest_bytes:
        limit = f"the limit is {limits.longest_bytes} (harvest.read.longest_bytes)"
        return Damage(path, Trouble.TOO_LONG, f"row {row} has {found.text_bytes} bytes; {limit}", row)
    return found


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
    """Return whether values of this type can stand in JSON, as they are or as text."""
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


def _is_binary(kind: pa.DataType) -> bool:
    return _is_string(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _of_json(column: pa.Array) -> pa.Array:
    if pa.types.is_float16(column.type):
        return column.cast(pa.float32())
    return column.cast(pa.string()) if pa.types.is_temporal(column.type) else column


def _in_json(value: Any) -> Any:
    """Return a value of nested columns as plain data: what JSON has no word for, such as times, as text."""
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
