"""The lineage of tokens: a Parquet table next to every shard with one row per document, in the shard's order.

documents-<split>-<source>.parquet has the columns document (id in the corpus), of (id of the document that it is a
piece of, or null) and tokens (including the end-of-text token). An adopted Megatron pair has no table: its document
n, counted from 0, is called PAIR/n.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trivium.errors import DataError
from trivium.tokens.shards import Starts, TokenShard

SCHEMA = pa.schema([("document", pa.string()), ("of", pa.string()), ("tokens", pa.int64())])
_GROUP_DOCUMENTS = 1 << 16  # documents of a Parquet row group
MAX_CACHED_GROUPS = 16  # per table: about a million ids


class Span(NamedTuple):
    """`length` tokens of a document, at `offset` in a sample and from the document's token `begin` on."""

    document: str
    offset: int
    length: int
    begin: int


class Found(NamedTuple):
    """A document at tokens [start, stop) of a source."""

    document: str
    source: str
    start: int
    stop: int


def lineage_file(shard: TokenShard) -> Path:
    return shard.prefix.with_name(f"documents-{shard.prefix.name}.parquet")


class LineageWriter:
    """Appends documents to a shard's lineage table. It is opened only after many documents, to limit open files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: pq.ParquetWriter | None = None
        self._held = [SCHEMA.empty_table()]
        self._rows = 0  # number of held rows

    def append(
        self, documents: pa.Array | Sequence[str], wholes: pa.Array | Sequence[str | None], lengths: NDArray[np.int64]
    ) -> None:
        """Append documents: ids, ids of the documents that they are pieces of, and lengths in tokens."""
        more = pa.table({"document": documents, "of": wholes, "tokens": lengths}, schema=SCHEMA)
        self._held.append(more)
        self._rows += more.num_rows
        if self._rows >= _GROUP_DOCUMENTS:
            together = pa.concat_tables(self._held)
            whole = self._rows - self._rows % _GROUP_DOCUMENTS
            self._write(together.slice(0, whole))
            self._held, self._rows = [together.slice(whole)], self._rows - whole

    def close(self) -> None:
        self._write(pa.concat_tables(self._held)).close()

    def _write(self, table: pa.Table) -> pq.ParquetWriter:
        self._file = self._file or pq.ParquetWriter(self._path, SCHEMA, compression="zstd")
        self._file.write_table(table.combine_chunks(), row_group_size=_GROUP_DOCUMENTS)
        return self._file


class Lineage:
    """The document ids of a shard in its order, read from the table on demand.

    At most MAX_CACHED_GROUPS groups are in memory, and the file is open only while a group is read.
    """

    def __init__(self, path: Path, shard: TokenShard) -> None:
        """Raises DataError if the table is missing, damaged, or does not belong to the shard."""
        self._path, self._shard = path, shard
        self._numbered = shard.first is not None  # an adopted pair has no table
        self._edges = self._group_edges()
        self._held: dict[int, pa.ChunkedArray] = {}  # ids by group, the most recently read last
        if not self._numbered:
            self._refuse_another_shard()

    def __len__(self) -> int:
        return int(self._edges[-1])

    def __getitem__(self, index: int) -> str:
        """Return the id of a document. Raises IndexError outside of the table."""
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {self._path}: it lists {len(self)} documents")
        group = int(np.searchsorted(self._edges, index, side="right")) - 1
        names = self._held.pop(group, None)
        if names is None:
            names = self._read(group, ["document"])["document"]
            if len(self._held) == MAX_CACHED_GROUPS:
                self._held.pop(next(iter(self._held)))
        self._held[group] = names
        return str(names[index - int(self._edges[group])].as_py())

    def __iter__(self) -> Iterator[str]:
        for _, table in self.tables(["document"]):
            yield from map(str, table["document"].to_pylist())

    def tables(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[tuple[int, pa.Table]]:
        """Yield (number of the first document, table) of each group. columns: those to read."""
        for group, (first, stop) in enumerate(pairwise(self._edges.tolist())):
            if first < stop:  # pyarrow crashes when it computes with a column without chunks
                yield first, self._read(group, columns)

    def _group_edges(self) -> NDArray[np.int64]:
        if self._numbered:
            return np.asarray([*range(0, len(self._shard), _GROUP_DOCUMENTS), len(self._shard)], dtype=np.int64)
        with self._opened() as file:
            rows = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        return np.cumsum([0, *rows], dtype=np.int64)

    def _read(self, group: int, columns: Sequence[str]) -> pa.Table:
        first, stop = self._edges[group : group + 2].tolist()
        if self._numbered:
            origin = self._shard.first or 0
            numbers = pa.array(np.arange(origin + first, origin + stop)).cast(pa.string())
            names = pc.binary_join_element_wise(self._shard.prefix.name, numbers, "/")
            lengths = np.diff(self._shard.document_starts[first : stop + 1])
            made = {"document": names, "of": pa.nulls(stop - first, pa.string()), "tokens": lengths}
            return pa.table(made, schema=SCHEMA).select(columns)
        with self._opened() as file:
            return file.read_row_group(group, columns=columns)

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        try:
            with pq.ParquetFile(self._path) as file:
                yield file
        except FileNotFoundError:
            raise DataError(f"{self._path} is missing; run `trivium tokenize` again") from None
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self._path} is not readable Parquet ({error}); run `trivium tokenize` again") from None

    def _refuse_another_shard(self) -> None:
        starts = self._shard.document_starts
        same = len(self) == len(self._shard) and all(
            np.array_equal(table["tokens"].to_numpy(), np.diff(starts[first : first + table.num_rows + 1]))
            for first, table in self.tables(["tokens"])
        )
        if not same:
            raise DataError(
                f"{self._path} lists {len(self)} documents that are not the {len(self._shard)} of "
                f"{self._shard.prefix}.idx; run `trivium tokenize` again"
            )


def find_documents(path: Path, shard: TokenShard, source: str, document: str) -> list[Found]:
    """Return the places of a document in a shard, or of the pieces that it was split into, omitting empty ones."""
    starts, found = shard.document_starts, []
    for first, table in Lineage(path, shard).tables():
        pieces = pc.fill_null(pc.equal(table["of"], document), False)
        for i in pc.indices_nonzero(pc.or_(pc.equal(table["document"], document), pieces)).to_pylist():
            start, stop = starts[first + i : first + i + 2].tolist()
            if start < stop:
                found.append(Found(str(table["document"][i].as_py()), source, start, stop))
    return found


def spans(documents: "Lineage | Sequence[str]", starts: Starts, window: tuple[int, int]) -> list[Span]:
    """Return the documents of tokens [window[0], window[1]) of a shard, which repeats after its end."""
    found: list[Span] = []
    at, end = window
    total = starts[-1]
    while at < end:
        place = at % total
        until = min(place + end - at, total)
        # Find the last document that starts at or before `place`; empty ones before it have no tokens.
        first = starts.search(place, side="right") - 1
        behind = starts.search(until, side="left")
        begins = starts[first:behind].tolist()
        edges = [place, *begins[1:], until]
        found += [
            Span(documents[index], at + here - place - window[0], there - here, here - begin)
            for index, (begin, here, there) in enumerate(zip(begins, edges[:-1], edges[1:], strict=True), first)
            if here < there
        ]
        at += until - place
    return found
