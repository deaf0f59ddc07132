"""Deduplication as a command: documents in, documents out, by similarity, whole texts, lines or paragraphs.

Texts are equal if their words are; case, punctuation and blanks do not count (kernels/words.py). Near duplicates can
also be compared with an index of earlier inputs, to which this input is then added.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trivium.corpus.config import CurateConfig, DedupConfig, ReadConfig
from trivium.corpus.dedup.groups import SAME_TEXT, keys_of_texts, ranks_of, survivors
from trivium.corpus.dedup.index import PARTS, add_snapshot, find_duplicates, ids_of, numbered, read_index, write_part
from trivium.corpus.document import Document
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.warm_up import warm_up
from trivium.corpus.kernels.words import keys_and_words
from trivium.corpus.publish.output import write_results
from trivium.corpus.read.files import Input
from trivium.corpus.read.inputs import documents_at, files_at, store_at
from trivium.corpus.steps import Drop, Reject, Tally, figure_of, noted
from trivium.corpus.work import begin_job, state_of
from trivium.progress import Progress, silent
from trivium.provenance import fingerprint

By = Literal["near", "text", "lines", "paragraphs"]
KINDS: tuple[By, ...] = ("near", "text", "lines", "paragraphs")
NEAR_OLD, NEAR_NEW = "near duplicate of an earlier snapshot", "near duplicate"
NOTHING_NEW = "nothing in it that did not stand in an earlier document"
_BREAK = {"lines": "\n", "paragraphs": "\n\n"}
_DOCUMENTS_IN_PART = 4096  # documents in a part of the index
Results = Iterator[Document | Reject]


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
    which an interrupted call does not compute again. index: a folder, which need not exist.
    """
    read, tally = Tally("read"), Tally(f"duplicates by {by}")
    every = partial(documents_at, source, read.passed_over)
    results: Results
    if by == "near":
        warm_up(progress)
        results = _without_near(config, source, every, tally, work=work, index=index, seed=seed, progress=progress)
    elif by == "text":
        results = without_equal_texts(every, config.dedup, tally)
    else:
        results = without_repeated(_counted(every(), read), by, tally, words=config.dedup.shortest)
    if by in ("near", "text"):  # these methods change no document
        results = _counted(results, read)
    return write_results(results, out, [read, tally])


def without_equal_texts(read: Callable[[], Iterable[Document]], config: DedupConfig, tally: Tally) -> Results:
    """Keep the document that survives for each text (`groups.survivors`). Rejects name it in their metadata (`same`).

    read: returns the documents. It is called twice, because the best document may be the last. Memory holds a hash of
    each different text, and id, source and quality of each document.
    """
    numbers: dict[bytes, int] = {}  # the number of each text
    ids, sources, texts, figures = list[str](), list[str](), array("q"), array("d")
    for document in read():
        texts.append(numbers.setdefault(keys_of_texts([document.text])[0], len(numbers)))
        figures.append(figure_of(document.metadata, config.quality))
        ids.append(document.id)
        sources.append(document.source)
    best = survivors(texts, ranks_of(sources, priority=config.priority), figures).tolist()
    for number, document in enumerate(read()):
        if best[number] == number:
            tally.keep(document)
            yield document
        else:
            yield _rejected(noted(document, same={"survivor": ids[best[number]]}), tally, SAME_TEXT)


def without_repeated(documents: Iterable[Document], by: By, tally: Tally, *, words: int) -> Results:
    """Remove lines or paragraphs that occurred before, in the same or another document. Those with fewer than `words`
    words, such as separators, stay.

    Metadata of a document that lost some gains `repeated`: how many lines or paragraphs were removed. Memory holds a
    hash of each different line or paragraph.
    """
    seen: set[int] = set()
    for document in documents:
        pieces = document.text.split(_BREAK[by])
        kept = [piece for piece, new in zip(pieces, _are_new(pieces, seen, words), strict=True) if new]
        if len(kept) == len(pieces):
            tally.keep(document)
            yield document
        elif any(piece.strip() for piece in kept):
            less = replace(document, text=_BREAK[by].join(kept))
            tally.keep(less)
            yield noted(less, repeated={by: len(pieces) - len(kept)})
        else:
            yield _rejected(document, tally, NOTHING_NEW)


def _without_near(
    config: CurateConfig,
    source: Input,
    read: Callable[[], Iterable[Document]],
    tally: Tally,
    *,
    work: Path,
    index: Path | None,
    seed: int,
    progress: Progress,
) -> Results:
    files = files_at(Path(source.path))
    job = begin_job(work, config, source, files, seed=seed)
    key = _key_of(source, files)
    snapshots = read_index(index, config.dedup, seed=seed) if index else []
    keys = [one["key"] for one in snapshots]
    known = key in keys  # an earlier call with this input added it, and perhaps did not finish
    before = snapshots[: keys.index(key)] if known else snapshots
    old = numbered([index / PARTS / name for one in before for name in one["parts"]]) if index else []
    folders = _write_parts(config.dedup, read(), job.work, seed=seed, progress=progress)
    new = numbered(folders, first=sum(part.documents for part in old))
    best, closest = find_duplicates(old, new, config.dedup)
    first = new[0].first if new else 0
    dropped = best != first + np.arange(len(best))
    names = ids_of([*old, *new], np.unique(best[dropped]))
    for row, document in enumerate(read()):
        survivor = int(best[row])
        if survivor == first + row:
            tally.keep(document)
            yield document
        else:
            near = {"survivor": names[survivor], "jaccard": round(float(closest[row]), 4)}
            reason = NEAR_OLD if survivor < first else NEAR_NEW
            yield _rejected(noted(document, near=near), tally, reason, "dedup.threshold=1")
    if index is not None and not known:
        add_snapshot(index, config.dedup, key, folders, seed=seed)


def _key_of(source: Input, files: Sequence[Path]) -> str:
    """Identify a snapshot by its files, and by the fields of their texts unless these are the default."""
    path, fields = Path(source.path), source.limits.text
    root = path if path.is_dir() else path.parent
    others = [] if fields == ReadConfig().text or store_at(path) else [fields]
    return fingerprint([str(root.resolve()), *map(state_of, files), *others])


def _write_parts(
    config: DedupConfig, documents: Iterable[Document], work: Path, *, seed: int, progress: Progress
) -> list[Path]:
    """Return the folders of the documents' keys, and write those that are missing."""
    folders: list[Path] = []
    left = iter(documents)
    while some := list(islice(left, _DOCUMENTS_IN_PART)):
        folders.append(work / PARTS / f"{len(folders):05d}")
        if not folders[-1].is_dir():
            write_part(folders[-1], some, config, seed=seed)
        progress(len(folders) * _DOCUMENTS_IN_PART, None, "signatures")
    return folders


def _are_new(pieces: list[str], seen: set[int], words: int) -> list[bool]:
    new = []
    keys, counts = keys_and_words(texts_of(pieces))
    for key, count in zip(keys[:, 0].tolist(), counts.tolist(), strict=True):
        new.append(count < words or key not in seen)
        if count >= words:
            seen.add(key)
    return new


def _rejected(document: Document, tally: Tally, reason: str, remedy: str = "") -> Reject:
    tally.drop(document, Drop(reason, remedy))
    return Reject(document, tally.step, reason)


def _counted(results: Iterable[Document | Reject], read: Tally) -> Iterator[Any]:
    """Yield the results, and count the document of each as read."""
    for result in results:
        read.keep(result.document if isinstance(result, Reject) else result)
        yield result
