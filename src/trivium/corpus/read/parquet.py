"""Documents of Parquet files, row group by row group, in bounded memory."""

from collections.abc import Collection, Iterator
from io import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Damage, Document, Trouble
from trivium.corpus.read.lines import OWN_FIELDS, row_document, text_of
from trivium.corpus.read.parquet_headers import declared, footer_problem
from trivium.untrusted import parse_json

_ROWS = 8  # read at once, because one stored text of the largest size can be the value of all of them
_MIN_ROW_BYTES = 64  # counted for a row, because a page of nulls takes a bit or nothing for one


class _Table(NamedTuple):
    """An open Parquet file.

    columns, leaves: the fields that are read, by name, and their leaf columns, by number. rows: of each row group,
    according to the footer.
    """

    file: BinaryIO
    parquet: pq.ParquetFile
    columns: list[str]
    leaves: set[int]
    rows: list[int]


def read_parquet(file: BinaryIO, path: Path | str, source: str, limits: ReadConfig) -> Iterator[Document | Damage]:
    """Yield the rows of a Parquet file. A row group that cannot be read costs no other one."""
    texts = {part for name in limits.text for part in (name, name.partition(".")[0])}
    wanted = {*texts, *OWN_FIELDS, "metadata"}
    try:
        if problem := footer_problem(file):
            yield Damage(path, Trouble.BOMB, problem)
            return
        table = _opened(file, wanted)
    except (pa.ArrowException, OSError, ValueError, IndexError, MemoryError) as error:
        yield Damage(path, Trouble.PARQUET, f"its footer cannot be read: {error}")
        return
    if not texts & set(table.columns):
        what = f"no column is called any of: {', '.join(limits.text)} (harvest.read.text)"
        yield Damage(path, Trouble.NO_TEXT, what)
        return
    if repeated := sorted(name for name in wanted if table.columns.count(name) > 1):
        yield Damage(path, Trouble.PARQUET, f"several columns are called {repeated[0]!r}; rename all but one")
        return
    first = 0
    for group, rows in enumerate(table.rows):
        yield from _read_group(table, group, first, path, source, limits)
        first += rows


def _opened(file: BinaryIO, wanted: Collection[str]) -> _Table:
    """Raises ValueError if row groups share bytes, so that a small file has any number of rows."""
    table = pq.ParquetFile(file, page_checksum_verification=True)
    known = table.metadata
    leaves = [table.schema.column(number) for number in range(len(table.schema))]
    # Lists keep their dictionaries, because one stored text may be the value of all of their elements.
    lists = [one.path for one in leaves if one.max_repetition_level and one.physical_type == "BYTE_ARRAY"]
    if lists:
        table = pq.ParquetFile(file, metadata=known, read_dictionary=lists, page_checksum_verification=True)
    columns = [field.name for field in table.schema_arrow if field.name in wanted or _is_plain(field.type)]
    numbers = {number for number, one in enumerate(leaves) if one.path.partition(".")[0] in columns}
    groups = [known.row_group(number) for number in range(known.num_row_groups)]
    stored = sum(group.column(number).total_compressed_size for group in groups for number in numbers)
    if stored > (size := file.seek(0, SEEK_END)):
        raise ValueError(f"its row groups have {stored} bytes, and the file has {size}")
    return _Table(file, table, columns, numbers, [group.num_rows for group in groups])


def _read_group(
    table: _Table, group: int, first: int, path: Path | str, source: str, limits: ReadConfig
) -> Iterator[Document | Damage]:
    """Yield the rows of a row group. first: the number of its first row in the file."""
    read, rows = 0, table.rows[group]

    def lost(trouble: Trouble, what: str) -> Damage:
        return Damage(path, trouble, f"row group {group}: {what}", first + read, max(rows - read, 1))

    try:
        chunks = [table.parquet.metadata.row_group(group).column(leaf) for leaf in table.leaves]
        packed = sum(chunk.total_compressed_size for chunk in chunks)
        stated = sum(chunk.total_uncompressed_size for chunk in chunks)
        most = max(limits.longest_bytes, limits.unpacked_ratio * packed)
        headers = declared(table.file, table.parquet, group, table.leaves)
        rows = min(rows, headers.rows)
        if (unpacked := max(stated, headers.unpacked) + headers.beside) > most:
            yield lost(Trouble.BOMB, f"{packed} bytes unpack to {unpacked}")
            return
        held = 0
        for batch in table.parquet.iter_batches(_ROWS, row_groups=[group], columns=table.columns):
            held += sum(map(_bytes_of, batch.columns)) + _MIN_ROW_BYTES * batch.num_rows
            if held > most:
                yield lost(Trouble.BOMB, f"{packed} bytes unpack to {held} and more by row {first + read}")
                return
            for values in zip(*map(_readable, batch.columns), strict=True):
                scalars = dict(zip(batch.schema.names, values, strict=True))
                yield _document(scalars, path, source, limits, first + read)
                read += 1
        if read < table.rows[group]:
            rows = read + 1
            yield lost(Trouble.PARQUET, f"it has {read} rows, and its footer says {table.rows[group]}")
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        yield lost(Trouble.PARQUET, str(error))


def _bytes_of(column: pa.Array) -> int:
    """Return the bytes of a column's values, with an entry of a dictionary counted for every value that refers to it.

    The footer counts it once.
    """
    kinds = pa.types
    if kinds.is_struct(column.type):
        return sum(map(_bytes_of, column.flatten()))
    if kinds.is_list(column.type) or kinds.is_large_list(column.type):
        return int(column.nbytes) + _bytes_of(column.flatten())
    if kinds.is_map(column.type):
        first, stop = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return sum(_bytes_of(part[first:stop]) for part in (column.keys, column.items))
    if not kinds.is_dictionary(column.type) or not (
        _is_string(column.type.value_type) or _is_bytes(column.type.value_type)
    ):
        return int(column.nbytes)
    return pc.sum(pc.take(pc.binary_length(column.dictionary), column.indices)).as_py() or 0


def _document(
    scalars: dict[str, Any], path: Path | str, source: str, limits: ReadConfig, row: int
) -> Document | Damage:
    try:
        values = {name: scalar.as_py() for name, scalar in scalars.items()}
        of_text = {part for field in limits.text for part in (field, field.partition(".")[0])}
        values |= {name: _decoded(values[name]) for name in of_text & values.keys()}
    except UnicodeDecodeError as error:
        return Damage(path, Trouble.NOT_UTF8, f"row {row} is not UTF-8: {error.reason}", row)
    if text_of(values, limits.text) is None:
        return Damage(path, Trouble.NO_TEXT, f"row {row} has no text", row)
    if isinstance(values.get("metadata"), str):  # as in a document store
        try:
            values["metadata"] = parse_json(values["metadata"])
        except ValueError:
            values["metadata"] = {"metadata": values["metadata"]}
    else:
        values["metadata"] = _in_json(values.get("metadata"))
    found = row_document({k: v for k, v in values.items() if v is not None}, source, limits)
    if found.text_bytes > limits.longest_bytes:
        limit = f"the limit is {limits.longest_bytes} (harvest.read.longest_bytes)"
        return Damage(path, Trouble.TOO_LONG, f"row {row} has {found.text_bytes} bytes; {limit}", row)
    return found


def _decoded(value: Any) -> Any:
    """Decode texts that are stored as bytes, also inside a field, as some writers do."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return {name: _decoded(one) for name, one in value.items()} if isinstance(value, dict) else value


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether JSON can hold values of this type, as they are or as text."""
    kinds = pa.types
    return bool(
        _is_string(kind)
        or (kinds.is_dictionary(kind) and _is_string(kind.value_type))
        or kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_boolean(kind)
        or kinds.is_time(kind)
        or kinds.is_date(kind)
        or kinds.is_timestamp(kind)
        or kinds.is_decimal(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _readable(column: pa.Array) -> pa.Array:
    """Return the column in a type whose values Python and JSON can represent."""
    if pa.types.is_float16(column.type):
        return column.cast(pa.float32())
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # The stored number counts from 1970 in UTC. Text in the zone itself would need a database of time zones.
        return pc.binary_join_element_wise(column.cast(pa.timestamp(column.type.unit)).cast(pa.string()), "Z", "")
    return column.cast(pa.string()) if pa.types.is_temporal(column.type) or pa.types.is_decimal(column.type) else column


def _in_json(value: Any) -> Any:
    """Return a nested value as plain data. What JSON cannot represent, such as a time, becomes text."""
    if isinstance(value, dict):
        return {str(name): _in_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_in_json, value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if value is None or isinstance(value, str | int | float) else str(value)
