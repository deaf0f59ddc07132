"""A sharded store of documents: Parquet files and a manifest with the sha256 of each.

manifest.json           format, shards (file, sha256, documents, text_bytes), counts by source
documents-00000.parquet columns id, source, text, metadata (JSON text)
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trivium.corpus.document import Document
from trivium.corpus.read.parquet_headers import footer_problem
from trivium.errors import DataError
from trivium.finite import dumps
from trivium.provenance import file_sha256, read_described, write_json
from trivium.untrusted import open_regular, read_json

FORMAT = "trivium-documents-1"
MANIFEST = "manifest.json"
DOCUMENTS = "documents"  # the store in the output of a verb
SCHEMA = pa.schema(
    [("id", pa.string()), ("source", pa.string()), ("text", pa.large_string()), ("metadata", pa.string())]
)

# Texts hardly ever repeat and have no order, so neither a dictionary nor statistics of them are useful.
PACKING: Mapping[str, Any] = MappingProxyType(
    {"compression": "zstd", "use_dictionary": ["source"], "write_statistics": ["id", "source"]}
)
# For tables that are read once and then deleted.
PASSING_PACKING: Mapping[str, Any] = MappingProxyType({**PACKING, "compression": "lz4"})


def write_documents(directory: Path, documents: Iterable[Document], *, shard_bytes: int = 64 << 20) -> dict[str, Any]:
    """Write documents in order, with a new shard every `shard_bytes` of text. Return the manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Any]] = []
    pending: list[Document] = []
    pending_bytes = 0
    for document in chain(documents, [None]):
        if document is not None:
            pending.append(document)
            pending_bytes += document.text_bytes
        if pending and (document is None or pending_bytes >= shard_bytes):
            shards.append(write_shard(directory / shard_name(len(shards)), documents_table(pending)))
            pending, pending_bytes = [], 0
    return write_manifest(directory, shards)


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"documents-{number:05d}.parquet"


def documents_table(documents: Sequence[Document]) -> pa.Table:
    """Return documents as a table of the store's columns."""
    columns = {
        "id": [d.id for d in documents],
        "source": [d.source for d in documents],
        "text": [d.text for d in documents],
        "metadata": [dumps(d.metadata, sort_keys=True, ensure_ascii=False) for d in documents],
    }
    return pa.table(columns, schema=SCHEMA)


def documents_in(table: pa.Table) -> Iterator[Document]:
    """Yield the documents of a table of the store's columns."""
    for batch in table.to_batches(max_chunksize=256):
        for row in batch.to_pylist():
            yield Document(row["id"], row["text"], row["source"], json.loads(row["metadata"]))


def write_shard(path: Path, table: pa.Table) -> dict[str, Any]:
    """Write one shard. The same table gives the same bytes. Return its entry, with counts by source."""
    pq.write_table(table.combine_chunks(), path, **PACKING)
    sizes = pc.binary_length(table["text"])
    grouped = pa.table({"source": table["source"], "size": sizes}).group_by("source")
    counts = grouped.aggregate([("size", "count"), ("size", "sum")]).sort_by("source").to_pylist()
    return {
        "file": path.name,
        "sha256": file_sha256(path),
        "documents": table.num_rows,
        "text_bytes": sum(row["size_sum"] for row in counts),
        "sources": {row["source"]: {"documents": row["size_count"], "text_bytes": row["size_sum"]} for row in counts},
    }


def write_manifest(directory: Path, shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write the manifest of a store from its shards' entries, and return it."""
    by_source: dict[str, Counter[str]] = {}
    for shard in shards:
        for source, counts in shard["sources"].items():
            by_source.setdefault(source, Counter()).update(counts)
    manifest = {
        "format": FORMAT,
        "documents": sum(shard["documents"] for shard in shards),
        "text_bytes": sum(shard["text_bytes"] for shard in shards),
        "sources": {source: dict(by_source[source]) for source in sorted(by_source)},
        "shards": [{k: v for k, v in shard.items() if k != "sources"} for shard in shards],
    }
    write_json(directory / MANIFEST, manifest)
    return manifest


def is_store(directory: Path) -> bool:
    """Return whether a folder has a manifest of Trivium, even a damaged one. Other software writes manifests too."""
    if not (directory / MANIFEST).is_file():
        return False
    try:
        found = read_json(directory / MANIFEST)
    except (ValueError, RecursionError):
        return True
    return isinstance(found, dict) and str(found.get("format")).startswith("trivium-")


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and check the manifest of a document store."""
    missing = f"{directory} holds no documents ({MANIFEST} is missing); run `trivium corpus curate`"
    return read_described(directory / MANIFEST, FORMAT, missing=missing, remedy="curate the corpus again")


def read_documents(directory: Path, *, verify: bool = True) -> Iterator[Document]:
    """Yield every document in the order written. Raises DataError for a shard whose bytes changed before it is used."""
    for table in read_tables(directory, verify=verify):
        yield from documents_in(table)


def read_tables(directory: Path, columns: Sequence[str] | None = None, *, verify: bool = True) -> Iterator[pa.Table]:
    """Yield tables of a few dozen documents in the order written, with these columns; otherwise as `read_documents`."""
    for shard in read_manifest(directory)["shards"]:
        yield from _tables_of(directory, shard, columns, verify=verify)


def read_shard(path: Path) -> Iterator[Document]:
    """Yield the documents of one shard of the store it lies in, otherwise as `read_documents`."""
    shards = {shard["file"]: shard for shard in read_manifest(path.parent)["shards"]}
    if path.name not in shards:
        raise DataError(f"{path} is not one of the {len(shards)} shards that {MANIFEST} lists; move it elsewhere")
    for table in _tables_of(path.parent, shards[path.name]):
        yield from documents_in(table)


def _tables_of(
    directory: Path, shard: dict[str, Any], columns: Sequence[str] | None = None, *, verify: bool = True
) -> Iterator[pa.Table]:
    path = directory / shard["file"]
    if not path.is_file():
        raise DataError(f"{path} is missing, but the manifest lists it; curate the corpus again")
    if verify and file_sha256(path) != shard["sha256"]:
        raise DataError(f"{path} does not have the sha256 in the manifest ({shard['sha256'][:12]}…): damaged")
    # The hash in the manifest does not say who wrote the file, so the file is not trusted.
    try:
        with open_regular(path) as stored:
            if problem := footer_problem(stored):
                raise ValueError(problem)
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64, columns=columns):
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise DataError(f"{path} is not readable Parquet: {error}; curate the corpus again") from None
