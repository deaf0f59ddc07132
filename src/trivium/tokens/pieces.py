"""Encode documents in pieces of some megabytes of text, in parallel, and assemble the pieces into shards.

A piece is either complete or absent. It depends only on its text and the tokenizer, and its boundaries only on the
documents. Neither the number of threads nor an interruption affects the result.
"""

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trivium.corpus.document import PIECE, origin_of
from trivium.corpus.publish.store import read_tables
from trivium.progress import Progress
from trivium.provenance import partial_of
from trivium.tokens.lineage import LineageWriter
from trivium.tokens.manifest import SPLITS
from trivium.tokens.shards import ShardWriter
from trivium.tokens.split import HeldOut, parts_of
from trivium.tokens.tokenizer import Tokenizer

PIECE_BYTES = 8 << 20  # text per piece; a kill loses at most one piece per thread
PIECE_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("document", "of", "source", "split")),
        ("text_bytes", pa.int64()),
        ("ids", pa.large_list(pa.uint32())),
    ]
)


class Work(NamedTuple):
    """The documents to encode, the tokenizer, the split, and the folder of finished pieces."""

    store: Path
    tokenizer: Tokenizer
    held_out: HeldOut
    folder: Path

    def piece(self, number: int) -> Path:
        """Return the path of a piece."""
        return self.folder / f"piece-{number:06d}.arrow"


def encode_pieces(work: Work, *, workers: int, total: int, progress: Progress) -> list[Path]:
    """Encode all documents, `workers` pieces in parallel, skipping finished pieces. Return the files in order."""
    files: list[Path] = []
    done, waiting = 0, deque[Future[int]]()
    _ = work.tokenizer.bulk  # built once here instead of in every thread
    with ThreadPoolExecutor(workers) as pool:
        for number, (first, table, text_bytes) in enumerate(_tables(work.store)):
            files.append(work.piece(number))
            if files[-1].is_file():
                done += text_bytes
            else:
                waiting.append(pool.submit(encode_piece, work, files[-1], table, first))
            while len(waiting) > workers:  # limits the text in memory
                done += waiting.popleft().result()
            progress(done, total, "encoding")
        for future in waiting:
            done += future.result()
            progress(done, total, "encoding")
    return files


def encode_piece(work: Work, path: Path, table: pa.Table, first: int) -> int:
    """Encode the documents of a table, the first of which has number `first`. Return their size in bytes."""
    parts, wholes = list(parts_of(table, first, work.held_out)), _wholes(table)
    begin = np.array(work.tokenizer.opening, np.uint32)
    end = np.array([work.tokenizer.end_of_text], np.uint32)
    encoded = work.tokenizer.encode_arrays([part.text for part in parts])
    lengths = np.array([len(begin) + len(ids) + 1 for ids in encoded], np.int64)
    flat = np.concatenate([array for ids in encoded for array in (begin, ids, end)])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    sizes = [len(part.text.encode()) for part in parts]
    columns = {
        "document": [part.document for part in parts],
        "of": [wholes.get(part.document) for part in parts],
        "source": [part.source for part in parts],
        "split": [part.split for part in parts],
        "text_bytes": sizes,
        "ids": pa.LargeListArray.from_arrays(offsets, flat),
    }
    partial = partial_of(path)
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, PIECE_SCHEMA) as file:
        file.write_table(pa.table(columns, schema=PIECE_SCHEMA))
    partial.replace(path)
    return sum(sizes)


def read_piece(path: Path) -> pa.Table:
    """Read an encoded piece with the columns document, of, source, split, text_bytes and ids."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _wholes(table: pa.Table) -> dict[str, str]:
    """Return {id: id of the original} for documents that curation cut out of another."""
    marked = table.filter(pc.match_substring_regex(table["id"], f"{PIECE}[0-9]+$"))
    rows = marked.select(["id", "metadata"]).to_pylist()
    found = {row["id"]: origin_of(row["id"], json.loads(row["metadata"])) for row in rows}
    return {identity: whole for identity, whole in found.items() if whole != identity}


def _tables(store: Path) -> Iterator[tuple[int, pa.Table, int]]:
    """Yield (number of the first document, the documents, their bytes) of each piece."""
    held: list[pa.Table] = []
    first = size = 0
    for table in read_tables(store, verify=False):
        held.append(table)
        size += pc.sum(pc.binary_length(table["text"])).as_py() or 0
        if size >= PIECE_BYTES:
            piece = pa.concat_tables(held)
            yield first, piece, size
            first += piece.num_rows
            held, size = [], 0
    if held:
        yield first, pa.concat_tables(held), size


# A stable sort keeps the order of documents within a source and split
_KINDS = [(column, "ascending") for column in ("source", "split")]


class ShardSet:
    """Writers of all shards. `counts`: occurrences of each id by split [vocabulary]."""

    def __init__(self, out: Path, stems: Mapping[str, str], *, dtype: str, vocabulary: int) -> None:
        self._out, self._stems, self._dtype = out, stems, dtype
        self._writers: dict[tuple[str, str], tuple[ShardWriter, LineageWriter]] = {}
        self._text_bytes: Counter[tuple[str, str]] = Counter()
        self.counts = {split: np.zeros(vocabulary, np.int64) for split in SPLITS}

    def append(self, piece: pa.Table) -> None:
        """Append each document of a piece to its shard."""
        # Sort once instead of filtering once per source, because a corpus may have thousands of sources.
        order = pc.sort_indices(piece, sort_keys=_KINDS)
        kinds = piece.group_by(["source", "split"]).aggregate([([], "count_all")]).sort_by(_KINDS)
        begin = 0
        for kind in kinds.to_pylist():
            source, split, mine = kind["source"], kind["split"], order.slice(begin, kind["count_all"])
            begin += len(mine)
            # copied, because a slice kept by the lineage writer would keep the full piece in memory
            rows = piece.take(mine)
            ids = np.concatenate([chunk.flatten().to_numpy() for chunk in rows["ids"].chunks])
            lengths = pc.list_value_length(rows["ids"]).to_numpy()
            shard, lineage = self._opened(source, split)
            shard.append(ids, lengths)
            lineage.append(rows["document"], rows["of"], lengths)
            self._text_bytes[source, split] += pc.sum(rows["text_bytes"]).as_py()
            counts = self.counts[split]
            counts += np.bincount(ids, minlength=len(counts))

    def close(self) -> dict[str, dict[str, Any]]:
        """Close all shards and return {source: {split: manifest entry}}."""
        entries: dict[str, dict[str, Any]] = {}
        for (source, split), (shard, lineage) in self._writers.items():
            lengths = shard.close()
            lineage.close()
            entries.setdefault(source, {})[split] = {
                "prefix": shard.prefix.name,
                "documents": len(lengths),
                "tokens": int(lengths.sum()),
                "text_bytes": self._text_bytes[source, split],
            }
        return entries

    def _opened(self, source: str, split: str) -> tuple[ShardWriter, LineageWriter]:
        if (source, split) not in self._writers:
            name = f"{split}-{self._stems[source]}"
            writers = (
                ShardWriter(self._out / name, dtype=self._dtype),
                LineageWriter(self._out / f"documents-{name}.parquet"),
            )
            self._writers[source, split] = writers
        return self._writers[source, split]
