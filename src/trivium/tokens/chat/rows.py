"""Read the rows of JSON lines, JSON lists and Parquet files, with bounds on size and nesting."""

from collections.abc import Iterator
from io import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from trivium.corpus.read.parquet_headers import declared, footer_problem
from trivium.errors import DataError
from trivium.jsonlines import LONGEST_LINE_BYTES, Row, parse_line, read_lines
from trivium.units import format_bytes, shown
from trivium.untrusted import open_regular, read_json

_ROWS = 8  # of Parquet, read at a time, because one stored text can be the value of all of them
_GROUP_BYTES = 512 << 20  # that a row group may unpack to


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file with their 1-based numbers. The value of a row that cannot be read is a ValueError.

    Raises DataError if the file as a whole cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        with open_regular(path) as file:
            if suffix == ".parquet":
                yield from _parquet(file)
            elif suffix == ".json" and _is_list(file):
                rows = read_json(path)
                yield from (Row(value, number) for number, value in enumerate(rows, 1))
            else:
                yield from _lines(file)
    except (OSError, pa.ArrowException, ValueError, MemoryError, IndexError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(
            f"{shown(str(path))} cannot be read ({shown(str(why))}); give JSON lines, a JSON list or Parquet"
        ) from None


def _is_list(file: BinaryIO) -> bool:
    begin = file.read(1 << 12).removeprefix(b"\xef\xbb\xbf").lstrip()
    file.seek(0)
    return begin.startswith(b"[")


def _lines(file: BinaryIO) -> Iterator[Row]:
    for line in read_lines(file, LONGEST_LINE_BYTES):
        value: Any
        try:
            value = parse_line(line)
        except ValueError as error:
            value = ValueError(str(error).removeprefix(f"line {line.number}, ").removeprefix(f"line {line.number}: "))
        yield Row(value, line.number)


def _parquet(file: BinaryIO) -> Iterator[Row]:
    """Yield the rows of a Parquet file. Raises ValueError if it unpacks to more than it may."""
    if problem := footer_problem(file):
        raise ValueError(problem)
    table = pq.ParquetFile(file, page_checksum_verification=True)
    groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
    columns = set(range(len(table.schema)))
    stored = sum(group.column(number).total_compressed_size for group in groups for number in columns)
    if stored > (size := file.seek(0, SEEK_END)):
        raise ValueError(f"its row groups have {stored} bytes, and the file has {size}")
    number = 0
    for group, known in enumerate(groups):
        headers = declared(file, table, group, columns)
        stated = sum(known.column(column).total_uncompressed_size for column in columns)
        if (unpacked := max(stated, headers.unpacked) + headers.beside) > _GROUP_BYTES:
            raise ValueError(
                f"row group {group} unpacks to {format_bytes(unpacked)}; the limit is {format_bytes(_GROUP_BYTES)}"
            )
        held = 0
        for batch in table.iter_batches(_ROWS, row_groups=[group]):
            held += batch.nbytes
            if held > _GROUP_BYTES:
                raise ValueError(f"row group {group} unpacks to more than {format_bytes(_GROUP_BYTES)} by row {number}")
            for value in batch.to_pylist():
                number += 1
                yield Row(value, number)
