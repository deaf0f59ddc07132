"""Documents of a command's input: the output of another command, or files of any readable kind."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from trivium.corpus.document import Damage, Document, PassedOver
from trivium.corpus.publish.store import DOCUMENTS, documents_in, is_store, read_manifest, read_shard, read_tables
from trivium.corpus.read.files import Input, input_files, source_of
from trivium.corpus.read.ids import OwnIds, keys_of
from trivium.corpus.read.read import read_any
from trivium.errors import DataError


def store_at(path: Path | str) -> Path | None:
    """Return the document store at this path, or inside it as the output of a command, or None."""
    if isinstance(path, str):
        return None
    return next((folder for folder in (path, path / DOCUMENTS) if is_store(folder)), None)


def files_at(path: Path) -> list[Path]:
    """Return the files to read, in order: a store's shards, or all readable files. DataError if there are none."""
    store = store_at(path)
    if store is None:
        return input_files(path)
    return [store / shard["file"] for shard in read_manifest(store)["shards"]]


def documents_of(file: Path | str, source: Input) -> Iterator[Document | Damage | PassedOver]:
    """Yield the documents of one of these files, its damage, and its records of other kinds."""
    if isinstance(file, Path) and store_at(source.path) is not None:
        yield from read_shard(file)
    else:
        yield from read_any(file, source=source_of(file, source.path), limits=source.limits)


def documents_at(source: Input, passed_over: Counter[str] | None = None) -> Iterator[Document]:
    """Yield every document under a unique id. DataError if a part cannot be read.

    Files are read twice, because ids depend on all other files, but a store's ids are unique already. passed_over: is
    cleared, and then counts the records that are no documents, by kind.
    """
    if store_at(source.path) is not None:
        yield from as_read_at(source)
        return
    keys = np.fromiter((keys_of([document.id])[0] for document in as_read_at(source)), np.uint64)
    ids = OwnIds(keys)
    for document in as_read_at(source, passed_over):
        yield replace(document, id=ids.of(document.id))


def as_read_at(source: Input, passed_over: Counter[str] | None = None) -> Iterator[Document]:
    """Yield every document under the id in its file. Otherwise the same as `documents_at`."""
    counts: Counter[str] = Counter() if passed_over is None else passed_over
    counts.clear()
    store = store_at(source.path)
    if store is not None:
        for table in read_tables(store):
            yield from documents_in(table)
        return
    for file in input_files(source.path):
        for item in documents_of(file, source):
            if isinstance(item, Damage):
                raise DataError(
                    f"{item.path}: {item.reason}; fix it, or give the output of `trivium corpus step read`, which "
                    f"accepts --set harvest.read.… and sets aside what cannot be read"
                )
            if isinstance(item, PassedOver):
                counts[item.kind] += 1
            else:
                yield item
