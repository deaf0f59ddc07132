"""Which document each token came from: one Parquet table beside every shard, a row per document, in shard order.

documents-<split>-<source>.parquet   columns document (id in the corpus), of (the id of the document that it is a
                                     piece of; null: a whole one), tokens (with its end mark)

A pair that was made elsewhere has no table: its document number n, from 0, is called PAIR/n.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trivium.corpus.document import PIECE, whole_of
from trivium.errors import DataError
from trivium.tokens.shards import TokenShard

SCHEMA = pa.schema([("document", pa.string()), ("of", pa.string()), ("tokens", pa.int64())])
_GROUP = 1 << 16  # documents that are written together


class Span(NamedTuple):
    """`length` tokens of one document, starting at `offset` in a sample and at its own token `begin`."""

    document: str
    offset: int
    length: int
    begin: int


class Found(NamedTuple):
    """A document among the tokens of a source: [start, stop)."""

    document: str
    source: str
    start: int
    stop: int


def lineage_file(shard: TokenShard) -> Path:
    """The table beside a shard."""
    return shard.prefix.with_name(f"documents-{shard.prefix.name}.parquet")


class LineageWriter:
    """Appends documents to the table beside a shard.

    Its file is open only once there are many: a corpus may have more sources than a process may have files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: pq.ParquetWriter | None = None
        self._held = [SCHEMA.empty_table()]
        self._rows = 0  # of those

    def append(
        self,
        documents: pa.Array | Sequence[str],
        wholes: pa.Array | Sequence[str | None],
        lengths: NDArray[np.int64],
    ) -> None:
        """Add the id in the corpus of each document, that of the one it is a piece of, and its length in tokens."""
        more = pa.table({"document": documents, "of": wholes, "tokens": lengths}, schema=SCHEMA)
        self._held.append(more)
        self._rows += more.num_rows
        if self._rows >= _GROUP:
            together = pa.concat_tables(self._held)
            whole = self._rows - self._rows % _GROUP
            self._write(together.slice(0, whole))
            self._held, self._rows = [together.slice(whole)], self._rows - whole

    def close(self) -> None:
        """Finish the table."""
        self._write(pa.concat_tables(self._held)).close()

    def _write(self, table: pa.Table) -> pq.ParquetWriter:
        self._file = self._file or pq.ParquetWriter(self._path, SCHEMA, compression="zstd")
        self._file.write_table(table.combine_chunks(), row_group_size=_GROUP)
        return self._file


def read_lineage(path: Path, shard: TokenShard) -> list[str]:
    """The document ids of a shard; DataError when the table is missing, damaged, or of another shard."""
    return [str(d) for d in _table(path, shard)["document"].to_pylist()]


def find_documents(path: Path, shard: TokenShard, source: str, document: str) -> list[Found]:
    """A document's place in a shard, or those of the pieces it was split into; one that left no token is none."""
    table = _table(path, shard)
    names, starts = table["document"], shard.document_starts
    same = pc.or_(pc.equal(names, document), _are_pieces_of(document, table))
    found = [
        Found(str(names[i].as_py()), source, int(starts[i]), int(starts[i + 1]))
        for i in pc.indices_nonzero(same).to_pylist()
    ]
    return [one for one in found if one.stop > one.start]


def _are_pieces_of(document: str, table: pa.Table) -> pa.ChunkedArray:
    if "of" in table.column_names:
        return pc.fill_null(pc.equal(table["of"], document), False)
    # A table of an older version: an id that ends as a piece's is taken for one's, though it may be a document's own.
    names = table["document"]
    likely = pc.indices_nonzero(pc.starts_with(names, pattern=document + PIECE)).to_pylist()
    are = np.zeros(table.num_rows, np.bool_)
    are[[i for i in likely if whole_of(names[i].as_py()) == document]] = True
    return pa.chunked_array([are])


def _table(path: Path, shard: TokenShard) -> pa.Table:
    if shard.first is not None:
        numbers = pa.array(np.arange(shard.first, shard.first + len(shard))).cast(pa.string())
        names = pc.binary_join_element_wise(shard.prefix.name, numbers, "/")
        whole = pa.nulls(len(shard), pa.string())
        columns = {"document": names, "of": whole, "tokens": np.diff(shard.document_starts)}
        return pa.table(columns, schema=SCHEMA)
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; run `trivium tokenize` again") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not readable Parquet ({error}); run `trivium tokenize` again") from None
    if not np.array_equal(table["tokens"].to_numpy(), np.diff(shard.document_starts)):
        raise DataError(
            f"{path} lists {table.num_rows} documents that are not the {len(shard)} of {shard.prefix}.idx; "
            "run `trivium tokenize` again"
        )
    return table


def spans(documents: Sequence[str], starts: NDArray[np.int64], window: tuple[int, int]) -> list[Span]:
    """The documents under tokens [window[0], window[1]) of a shard; past its end it begins again."""
    found: list[Span] = []
    at, end = window
    total = int(starts[-1])
    while at < end:
        place = at % total
        until = min(place + end - at, total)
        # The last document that starts at or before `place`: empty ones before it hold no token.
        first = int(np.searchsorted(starts, place, side="right")) - 1
        behind = int(np.searchsorted(starts, until, side="left"))
        begins = starts[first:behind].tolist()
        edges = [place, *begins[1:], until]
        found += [
            Span(documents[index], at + here - place - window[0], there - here, here - begin)
            for index, (begin, here, there) in enumerate(
                zip(begins, edges[:-1], edges[1:], strict=True), first
            )
            if here < there
        ]
        at += until - place
    return found
