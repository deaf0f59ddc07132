"""What a verb is given to read: the output of another verb, or files of any kind that can be read."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trivium.corpus.config import ReadConfig
from trivium.corpus.document import Document
from trivium.corpus.read.listing import input_files, source_of
from trivium.corpus.read.own_ids import OwnIds, keys_of
from trivium.corpus.read.quarantine import Damage, PassedOver
from trivium.corpus.read.read import read_any
from trivium.corpus.store import documents_in, is_store, read_manifest, read_shard, read_tables
from trivium.errors import DataError

DOCUMENTS = "documents"  # the store in the output of a verb


class Input(NamedTuple):
    """What a verb is given to read, and where its rows' texts stand and how large a thing in it may be."""

    path: Path
    limits: ReadConfig = ReadConfig()


def store_at(path: Path) -> Path | None:
    """The document store that this path is, or holds as the output of a verb; None when it is neither."""
    return next((folder for folder in (path, path / DOCUMENTS) if is_store(folder)), None)


def files_at(path: Path) -> list[Path]:
    """The files to read, in order: a store's shards, or whatever can be read; DataError when there are none."""
    store = store_at(path)
    if store is None:
        return input_files(path)
    return [store / shard["file"] for shard in read_manifest(store)["shards"]]


def documents_of(file: Path, source: Input) -> Iterator[Document | Damage | PassedOver]:
    """The documents of one of the files there, and what is none: damage, and records of other kinds."""
    if store_at(source.path) is None:
        yield from read_any(file, source=source_of(file, source.path), limits=source.limits)
        return
    yield from read_shard(file)


def documents_at(source: Input, passed_over: Counter[str] | None = None) -> Iterator[Document]:
    """Every document there, under an id of its own; DataError when a part cannot be read.

    Files are read twice, as ids depend on all others; a store's documents have their own. passed_over: filled with the
    records that are no documents, by their kind; counts of an earlier reading are cleared.
    """
    if store_at(source.path) is not None:
        yield from as_read_at(source)
        return
    keys = np.fromiter((keys_of([document.id])[0] for document in as_read_at(source)), np.uint64)
    ids = OwnIds(keys)
    for document in as_read_at(source, passed_over):
        yield replace(document, id=ids.of(document.id))


def as_read_at(source: Input, passed_over: Counter[str] | None = None) -> Iterator[Document]:
    """Every document there, under the id that its file gives it, which others may have, too; DataError at the first
    part that cannot be read. passed_over: as for `documents_at`."""
    counts = Counter[str]() if passed_over is None else passed_over
    counts.clear()
    store = store_at(source.path)
    if store is not None:
        for table in read_tables(store):
            yield from documents_in(table)
        return
    for file in input_files(source.path):
        for item in read_any(file, source=source_of(file, source.path), limits=source.limits):
            if isinstance(item, Damage):
                raise DataError(
                    f"{item.path}: {item.reason}; fix it, or set it aside with `trivium corpus step read`"
                )
            if isinstance(item, PassedOver):
                counts[item.kind] += 1
            else:
                yield item
