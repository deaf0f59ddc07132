"""Deduplication as a verb: documents in, documents out, by whole texts, lines, paragraphs or similarity.

Near duplicates can also be looked for in an index of earlier inputs, to which this input is then added.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trivium.corpus.config import CurateConfig, ReadConfig
from trivium.corpus.dedup.index import PARTS, add_snapshot, find_duplicates, ids_of, listed, read_index, write_part
from trivium.corpus.dedup.repeats import without_equal_texts, without_repeated
from trivium.corpus.document import Document
from trivium.corpus.files import Input
from trivium.corpus.publish.output import write_results
from trivium.corpus.read.inputs import documents_at, files_at, store_at
from trivium.corpus.steps import Drop, Reject, Tally, noted
from trivium.corpus.warm_up import warm_up
from trivium.corpus.work import begin_job, state_of
from trivium.progress import Progress, silent
from trivium.provenance import fingerprint

By = Literal["near", "text", "lines", "paragraphs"]
KINDS: tuple[By, ...] = ("near", "text", "lines", "paragraphs")
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
    """Drop documents at `source` that repeat an earlier one, or one in the index. Return {"funnel": …}.

    out: an existing folder for documents/, rejects.jsonl.gz and funnel.json. work: a folder for the keys of documents,
    so that an interrupted call need not make them again. index: a folder, which need not exist.
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
    path = Path(source.path)
    root = path if path.is_dir() else path.parent
    files = files_at(path)
    job = begin_job(work, config, source, files, seed=seed)
    key = _key_of(source, root, files)
    snapshots = read_index(index, config.dedup, seed=seed) if index else []
    keys = [one["key"] for one in snapshots]
    known = key in keys  # a call like this one added it, and perhaps did not finish
    before = snapshots[: keys.index(key)] if known else snapshots
    old = listed([index / PARTS / name for one in before for name in one["parts"]]) if index else []
    new = listed(_parts(config, source, job.work, seed=seed, progress=progress), first=sum(p.documents for p in old))
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
    """Identify a snapshot: by its files, and by the fields that hold its texts, unless these are the default."""
    fields = source.limits.text
    others = [] if fields == ReadConfig().text or store_at(source.path) else [fields]
    return fingerprint([str(root.resolve()), *map(state_of, files), *others])


def _parts(config: CurateConfig, source: Input, work: Path, *, seed: int, progress: Progress) -> list[Path]:
    """Return the folders of the documents' keys, and make those that are missing."""
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
