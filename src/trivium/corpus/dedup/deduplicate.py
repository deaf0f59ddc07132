"""Deduplication as a station of its own: documents in, documents out, by whole texts, lines, paragraphs or likeness.

Near duplicates may be looked for in an index of what earlier calls saw, which then gains what this one saw.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trivium.corpus.config import CurateConfig, ReadConfig
from trivium.corpus.dedup.index import (
    PARTS,
    add_snapshot,
    find_duplicates,
    ids_of,
    listed,
    read_index,
    write_part,
)
from trivium.corpus.dedup.repeats import without_equal_texts, without_repeated
from trivium.corpus.document import Document
from trivium.corpus.job import begin_job, state_of
from trivium.corpus.read.inputs import Input, documents_at, files_at, store_at
from trivium.corpus.station import write_results
from trivium.corpus.steps import Drop, Reject, Tally, noted
from trivium.corpus.warm_up import warm_up
from trivium.progress import Progress, silent
from trivium.provenance import fingerprint

By = Literal["near", "text", "lines", "paragraphs"]
WAYS: tuple[By, ...] = ("near", "text", "lines", "paragraphs")
NEAR_OLD, NEAR_NEW = "near duplicate of an earlier snapshot", "near duplicate"
_TOGETHER = 4096  # documents in a part of the index


def deduplicate(
    config: CurateConfig,
    source: Input,
    out: Path,
    *,
    by: By,
    seed: int,
    work: Path,
    index: Path | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Drop what repeats an earlier document at `source`, in their order, or one in the index. Returns {"funnel": …}.

    out: an existing folder for documents/, rejects.jsonl.gz and funnel.json. work: where the keys of documents are
    kept, so that they are not made twice. index: a folder; it need not exist.
    """
    read, tally = Tally("read"), Tally(f"duplicates by {by}")
    if by == "near":
        near = _near(config, source, work, index, (read, tally), seed=seed, progress=progress)
        results = _tallied(near, read)
    elif by == "text":
        every = partial(documents_at, source, read.passed_over)
        results = _tallied(without_equal_texts(every, config.dedup, tally), read)
    else:
        documents = _counted(documents_at(source, read.passed_over), read)
        results = without_repeated(documents, by, tally, words=config.dedup.shortest)
    return write_results(results, out, [read, tally])


def _near(
    config: CurateConfig,
    source: Input,
    work: Path,
    index: Path | None,
    tallies: tuple[Tally, Tally],
    *,
    seed: int,
    progress: Progress,
) -> Iterator[Document | Reject]:
    warm_up(progress)
    read, tally = tallies
    root = source.path if source.path.is_dir() else source.path.parent
    files = files_at(source.path)
    job = begin_job(work, root, config, seed=seed, files=files, limits=source.limits)
    key = _key_of(source, root, files)
    snapshots = read_index(index, config.dedup, seed=seed) if index else []
    keys = [one["key"] for one in snapshots]
    known = key in keys  # it was added by a call like this one, which was perhaps cut off later
    before = snapshots[: keys.index(key)] if known else snapshots
    old = listed([index / PARTS / name for one in before for name in one["parts"]]) if index else []
    new = listed(
        _parts(config, source, job.work, seed=seed, progress=progress), first=sum(p.documents for p in old)
    )
    found = find_duplicates(old, new, config.dedup)
    first = new[0].first if new else 0
    dropped = found.survivors != first + np.arange(len(found.survivors))
    names = ids_of([*old, *new], np.unique(found.survivors[dropped]))
    for row, document in enumerate(documents_at(source, read.passed_over)):
        survivor, similarity = int(found.survivors[row]), round(float(found.similarities[row]), 4)
        if survivor == first + row:
            tally.keep(document)
            yield document
        else:
            reason = NEAR_OLD if survivor < first else NEAR_NEW
            tally.drop(document, Drop(reason, "dedup.threshold=1"))
            near = noted(document, near={"survivor": names[survivor], "jaccard": similarity})
            yield Reject(near, tally.step, reason)
    if index is not None and not known:
        add_snapshot(index, config.dedup, key, [part.folder for part in new], seed=seed)


def _key_of(source: Input, root: Path, files: Sequence[Path]) -> str:
    """What a snapshot is known by: its files, and the fields of its rows' texts, where these are not the default's."""
    fields = source.limits.text
    others = [] if fields == ReadConfig().text or store_at(source.path) else [fields]
    return fingerprint([str(root.resolve()), *map(state_of, files), *others])


def _parts(config: CurateConfig, source: Input, work: Path, *, seed: int, progress: Progress) -> list[Path]:
    """The folders of the documents' keys, a fixed number of documents in each; those there are not made again."""
    folders: list[Path] = []
    documents = documents_at(source)
    while together := list(islice(documents, _TOGETHER)):
        folders.append(work / PARTS / f"{len(folders):05d}")
        if not folders[-1].is_dir():
            write_part(folders[-1], together, config.dedup, seed=seed)
        progress(len(folders) * _TOGETHER, None, "signatures")
    return folders


def _counted(documents: Iterable[Document], read: Tally) -> Iterator[Document]:
    for document in documents:
        read.keep(document)
        yield document


def _tallied(results: Iterable[Document | Reject], read: Tally) -> Iterator[Document | Reject]:
    for result in results:
        read.keep(result.document if isinstance(result, Reject) else result)
        yield result
