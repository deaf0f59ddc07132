"""A sharded store of documents: Parquet files and a manifest with the sha256 of each.

manifest.json           format, shards (file, sha256, documents, text_bytes), counts by source
documents-00000.parquet columns id, source, text, metadata (JSON text)
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trivium.corpus.document import Document
from trivium.errors import DataError
from trivium.provenance import file_sha256, write_json

FORMAT = "trivium-documents-1"
MANIFEST = "manifest.json"
_SCHEMA = pa.schema(
    [("id", pa.string()), ("source", pa.string()), ("text", pa.large_string()), ("metadata", pa.string())]
)


def write_documents(
    directory: Path, documents: Iterable[Document], *, shard_bytes: int = 64 << 20
) -> dict[str, Any]:
    """Write documents in order, a new shard every `shard_bytes` of text; returns the manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Any]] = []
    by_source: Counter[str] = Counter()
    bytes_by_source: Counter[str] = Counter()
    pending: list[Document] = []
    pending_bytes = 0
    for document in chain(documents, [None]):
        if document is not None:
            pending.append(document)
            pending_bytes += document.text_bytes
            by_source[document.source] += 1
            bytes_by_source[document.source] += document.text_bytes
        if pending and (document is None or pending_bytes >= shard_bytes):
            shards.append(_write_shard(directory, len(shards), pending, pending_bytes))
            pending, pending_bytes = [], 0
    manifest = {
        "format": FORMAT,
        "documents": sum(by_source.values()),
        "text_bytes": sum(bytes_by_source.values()),
        "sources": {
            s: {"documents": by_source[s], "text_bytes": bytes_by_source[s]} for s in sorted(by_source)
        },
        "shards": shards,
    }
    write_json(directory / MANIFEST, manifest)
    return manifest


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a document store, checked to be one."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{directory} holds no documents ({MANIFEST} is missing); run `trivium corpus curate`"
        ) from None
    except ValueError:
        raise DataError(f"{path} is not JSON: it was truncated or edited; curate the corpus again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{path} is not a {FORMAT} manifest (format: {manifest.get('format')!r})")
    return manifest


def read_documents(directory: Path, *, verify: bool = True) -> Iterator[Document]:
    """Every document in the order written; a shard whose bytes changed is refused before any of it is used."""
    for shard in read_manifest(directory)["shards"]:
        path = directory / shard["file"]
        if not path.is_file():
            raise DataError(f"{path} is missing, but the manifest lists it; curate the corpus again")
        if verify and file_sha256(path) != shard["sha256"]:
            raise DataError(
                f"{path} does not have the sha256 in the manifest ({shard['sha256'][:12]}…): damaged"
            )
        for batch in pq.ParquetFile(path).iter_batches(batch_size=256):
            for row in batch.to_pylist():
                yield Document(row["id"], row["text"], row["source"], json.loads(row["metadata"]))


def _write_shard(directory: Path, number: int, documents: list[Document], text_bytes: int) -> dict[str, Any]:
    path = directory / f"documents-{number:05d}.parquet"
    columns = {
        "id": [d.id for d in documents],
        "source": [d.source for d in documents],
        "text": [d.text for d in documents],
        "metadata": [json.dumps(d.metadata, sort_keys=True, ensure_ascii=False) for d in documents],
    }
    pq.write_table(pa.table(columns, schema=_SCHEMA), path, compression="zstd")
    return {
        "file": path.name,
        "sha256": file_sha256(path),
        "documents": len(documents),
        "text_bytes": text_bytes,
    }
