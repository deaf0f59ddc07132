"""Comparison of all documents of a curation: which of them repeat another one, and which one of a group survives.

Equal texts, ids and addresses come first, then near duplicates among the remaining documents. Near duplicates are
compared band by band and part by part, so that memory holds keys and pairs but never all texts.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trivium.corpus.config import CurateConfig, DedupConfig
from trivium.corpus.dedup.groups import SAME_TEXT, groups_of, ranks_of
from trivium.corpus.dedup.minhash import MAX_COMPARED_TEXTS, merged_pairs
from trivium.corpus.engine import Done, Engine, Result
from trivium.corpus.kernels.shingles import NO_SHINGLES, ShingleSets, jaccard_of_pairs, pairs_in_band, shingle_sets
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import Hashes, text_keys
from trivium.corpus.steps import figure_of
from trivium.corpus.work import (
    Job,
    counts_of,
    lay_down,
    mapped,
    read_array,
    read_job,
    save_array,
    state_of,
    write_array,
)
from trivium.provenance import write_json

CurationJob = Job[CurateConfig]
Numbers = NDArray[np.int64]


class Fate(IntEnum):
    """The result of comparing a document with all others."""

    KEPT = 0
    SAME_TEXT = 1
    SAME_ID = 2
    SAME_ADDRESS = 3
    NEAR = 4
    NEAR_HELDOUT = 5


REASONS = {
    Fate.SAME_TEXT: SAME_TEXT,
    Fate.SAME_ID: "same id as another document",
    Fate.SAME_ADDRESS: "same address as another document",
    Fate.NEAR: "near duplicate",
    Fate.NEAR_HELDOUT: "near duplicate of a held-out document",
}
PART_LIST = "parts.json"
TABLE, BANDS = "documents.parquet", "bands.npy"  # files of a part
KEY, ADDRESS = "key", "address"  # columns of 16 bytes: equal for equal words, and for equal addresses
TEXT_ID = "text_id"  # column: the id of the whole text, whose pieces all have its address
_EXACT = {KEY: Fate.SAME_TEXT, "id": Fate.SAME_ID, ADDRESS: Fate.SAME_ADDRESS}
_HELDOUT = "\x00"  # the source of held-out documents; no real source has this name
_FATES = "fates.npy"  # after exact deduplication
_DECIDED, _PAIRS, _CANDIDATES, _SHINGLES, _SIMILAR = "decided", "pairs", "candidates", "shingles", "similar"
_BY_LATER, _COMPARED = "by_later.npy", "compared.npy"  # pairs sorted by their later document; all documents in pairs
_NAMED, _NAMES = "named.npy", "names.arrow"  # the sorted numbers of survivors, and the id of each


class Part(NamedTuple):
    """A part of the first pass: its folder, the number of its first document among all, and how many it has."""

    folder: Path
    first: int
    documents: int
    text_bytes: int

    @property
    def end(self) -> int:
        """The number after its last document's."""
        return self.first + self.documents

    def table(self, columns: list[str] | None = None) -> pa.Table:
        """Return its documents."""
        return pq.read_table(self.folder / TABLE, columns=columns)

    def counts(self) -> dict[str, Any]:
        """Return the counts of its steps, and which evaluation texts its documents contain."""
        return counts_of(self.folder)

    def rows_among(self, numbers: Numbers) -> Numbers:
        """Return the rows of this part's documents among sorted document numbers."""
        low, high = np.searchsorted(numbers, (self.first, self.end))
        return numbers[low:high] - self.first


class Decisions(NamedTuple):
    """The decision on each document: its fate, the number of the surviving document (its own if it survives), and its
    largest verified similarity."""

    fates: NDArray[np.uint8]
    survivors: Numbers
    similarities: NDArray[np.float64]


def list_parts(job: CurationJob, folders: Sequence[Path]) -> list[Part]:
    """Number the documents of all parts, in order, and store the list for the tasks that follow."""
    if not job.path(PART_LIST).is_file():
        rows, first = [], 0
        for folder in folders:
            counts = counts_of(folder)
            rows.append([str(folder), first, counts["documents"], counts["text_bytes"]])
            first += counts["documents"]
        write_json(job.path(PART_LIST), rows)
    return all_parts(job)


def all_parts(job: CurationJob) -> list[Part]:
    """Return the parts that `list_parts` stored. The first one has the held-out documents."""
    return list(_listed_parts(job, state_of(job.path(PART_LIST))))


@lru_cache(maxsize=2)  # read once in each process, not for each task
def _listed_parts(job: CurationJob, _: tuple[str, int, int]) -> tuple[Part, ...]:
    rows = json.loads(job.path(PART_LIST).read_text(encoding="utf-8"))
    return tuple(Part(Path(folder), *numbers) for folder, *numbers in rows)


def decide(job: CurationJob, parts: list[Part], engine: Engine, done: Done) -> None:
    """Compare all documents and write the decisions. Work that is already on disk is not repeated."""
    if job.path(_DECIDED).is_dir():
        return
    if job.config.keep_all:
        every = np.arange(parts[-1].end)
        kept = Decisions(np.full(len(every), Fate.KEPT, np.uint8), every, np.zeros(len(every)))
        lay_down(job.path(_DECIDED), partial(_save_decisions, kept, parts))
        return
    ranks, quality = _ranks(parts, job.config.dedup), _qualities(parts, job.config.dedup.quality)
    fates, firsts = _exact(parts, ranks, quality)
    if not job.path(_FATES).is_file():
        save_array(job.path(_FATES), fates)
    bands = [str(band) for band in range(job.config.dedup.bands)]
    engine.map(partial(pairs_of_band, str(job.work)), bands, done, light=True)
    if not job.path(_CANDIDATES).is_dir():
        pairs = merged_pairs(read_array(job.path(_PAIRS, f"{band}.npy")) for band in bands)
        compared = np.zeros(len(fates), dtype=bool)
        compared[pairs] = True
        by_later = pairs[np.argsort(pairs[:, 1], kind="stable")]
        lay_down(job.path(_CANDIDATES), partial(_save, {_BY_LATER: by_later, _COMPARED: np.flatnonzero(compared)}))
    numbers = [str(number) for number in range(len(parts))]
    engine.map(partial(shingles_of_part, str(job.work)), numbers, done, light=True)
    engine.map(partial(similar_to_part, str(job.work)), numbers, done, light=True)
    similar = np.concatenate([read_array(job.path(_SIMILAR, f"{number}.npy")) for number in numbers])
    best, closest = groups_of(similar[:, :2].astype(np.int64), similar[:, 2], ranks, quality)
    near = (best != np.arange(len(fates))) & (fates == Fate.KEPT)
    fates[near] = np.where(best[near] < parts[0].documents, Fate.NEAR_HELDOUT, Fate.NEAR)
    lay_down(job.path(_DECIDED), partial(_save_decisions, Decisions(fates, best[firsts], closest), parts))
    for name in (_PAIRS, _CANDIDATES, _SHINGLES, _SIMILAR):
        shutil.rmtree(job.path(name))


def decisions_of(job: CurationJob, part: Part) -> Decisions:
    """Return the decisions on the documents of one part."""
    files = (job.path(_DECIDED, f"{name}.npy") for name in Decisions._fields)
    return Decisions(*(mapped(file)[part.first : part.end] for file in files))


def survivor_ids(job: CurationJob, numbers: Numbers) -> list[str]:
    """Return the ids of surviving documents by their numbers."""
    named = mapped(job.path(_DECIDED, _NAMED))
    with pa.memory_map(str(job.path(_DECIDED, _NAMES))) as file:
        names = pa.ipc.open_file(file).read_all()["id"]
        ids: list[str] = names.take(pa.array(np.searchsorted(named, numbers))).to_pylist()
    return ids


def pairs_of_band(work: str, item: str) -> Result:
    """Write the pairs of documents that agree in the band of this number. A task."""
    job = read_job(work, CurateConfig)
    path = job.path(_PAIRS, f"{item}.npy")
    if not path.is_file():
        # Copied, because a mapped file stays open, and a process may only have about a thousand open files.
        keys = np.concatenate([mapped(part.folder / BANDS)[int(item)].copy() for part in all_parts(job)])
        keys[mapped(job.path(_FATES)) != Fate.KEPT] = NO_SHINGLES
        save_array(path, pairs_in_band(keys, chain=MAX_COMPARED_TEXTS))
    return {}


def shingles_of_part(work: str, item: str) -> Result:
    """Write the shingle sets of those documents of the part of this number that are in a pair. A task."""
    job = read_job(work, CurateConfig)
    part, folder = all_parts(job)[int(item)], job.path(_SHINGLES, item)
    if not folder.is_dir():
        rows = part.rows_among(mapped(job.path(_CANDIDATES, _COMPARED)))
        texts = texts_of(part.table(["text"])["text"].take(rows)) if len(rows) else texts_of([])
        sets = shingle_sets(texts, size=job.config.dedup.shingle)
        lay_down(folder, partial(_save, {"rows.npy": rows, "hashes.npy": sets.hashes, "offsets.npy": sets.offsets}))
    return {}


def similar_to_part(work: str, item: str) -> Result:
    """Write the similar pairs whose later document is in the part of this number, with their similarity. A task."""
    job = read_job(work, CurateConfig)
    path = job.path(_SIMILAR, f"{item}.npy")
    if path.is_file():
        return {}
    parts = all_parts(job)
    here, candidates = parts[int(item)], mapped(job.path(_CANDIDATES, _BY_LATER))
    low, high = np.searchsorted(candidates[:, 1], (here.first, here.end))
    pairs = candidates[low:high][np.argsort(candidates[low:high, 0], kind="stable")]
    right, right_rows = _sets(job, item)
    similar = [np.empty((0, 3))]
    owners = np.searchsorted([part.end for part in parts], pairs[:, 0], side="right")
    numbers, starts = np.unique(owners, return_index=True)
    for number, some in zip(numbers.tolist(), np.split(pairs, starts[1:]), strict=False):
        left, left_rows = _sets(job, str(number))
        left_places = np.searchsorted(left_rows, some[:, 0] - parts[number].first)
        right_places = np.searchsorted(right_rows, some[:, 1] - here.first)
        similarity = jaccard_of_pairs(left, right, np.stack([left_places, right_places], axis=1))
        similar.append(np.column_stack([some, similarity])[similarity >= job.config.dedup.threshold])
    save_array(path, np.concatenate(similar))
    return {}


def _sets(job: CurationJob, number: str) -> tuple[ShingleSets, Numbers]:
    folder = job.path(_SHINGLES, number)
    return ShingleSets(mapped(folder / "hashes.npy"), mapped(folder / "offsets.npy")), mapped(folder / "rows.npy")


def _ranks(parts: list[Part], config: DedupConfig) -> Numbers:
    """Return the rank of each document's source. Held-out documents rank first, so that training never sees them."""
    priority = (_HELDOUT, *config.priority)
    sources = (part.table(["source"])["source"].to_pylist() for part in parts[1:])
    every = ([_HELDOUT] * parts[0].documents, *sources)
    return np.concatenate([ranks_of(one, priority=priority) for one in every])


def _qualities(parts: list[Part], figure: str) -> NDArray[np.float64]:
    """Return this figure of each document's metadata; 0 for all documents if no figure is configured."""
    if not figure:
        return np.zeros(parts[-1].end)
    rows = (text for part in parts for text in part.table(["metadata"])["metadata"].to_pylist())
    return np.array([figure_of(json.loads(text), figure) for text in rows], np.float64)


def _exact(parts: list[Part], ranks: Numbers, quality: NDArray[np.float64]) -> tuple[NDArray[np.uint8], Numbers]:
    """Return the fates after exact deduplication and, for each document, the number of the best one that it repeats, or
    its own. Held-out documents are all kept.

    Only documents that may repeat another one are compared in Python. For the others memory holds three numbers each.
    """
    keys = np.concatenate([_hashes(part) for part in parts[1:]], axis=1)
    rows = parts[0].documents + np.flatnonzero(np.any(list(map(_occur_twice, keys)), axis=0))
    columns = [*_EXACT, "source", TEXT_ID]
    picked = pa.concat_tables([part.table(columns).take(pa.array(part.rows_among(rows))) for part in parts[1:]])
    compared = list(zip(*(picked[name].to_pylist() for name in _EXACT), strict=True))
    owners = zip(picked["source"].to_pylist(), picked[TEXT_ID].to_pylist(), strict=True)
    wholes = dict(zip(rows.tolist(), owners, strict=True))
    fates, firsts = np.full(len(ranks), Fate.KEPT, np.uint8), np.arange(len(ranks))
    kept: dict[Fate, dict[Any, int]] = {fate: {} for fate in _EXACT.values()}
    for place in np.lexsort((-quality[rows], ranks[rows])).tolist():
        row, values = int(rows[place]), list(zip(_EXACT.values(), compared[place], strict=True))
        repeated = ((fate, kept[fate][value]) for fate, value in values if value in kept[fate])
        others = (pair for pair in repeated if pair[0] != Fate.SAME_ADDRESS or wholes[pair[1]] != wholes[row])
        if (found := next(others, None)) is not None:
            fates[row], firsts[row] = found
            continue
        # A document that is dropped does not drop others: only those that are kept are remembered.
        for fate, value in values:
            if value != b"":  # a document without an address
                kept[fate].setdefault(value, row)
    return fates, firsts


def _hashes(part: Part) -> Hashes:
    """Return 64 bits of the text, id and address of each document, [3, documents]. 0 means no address."""
    table = part.table([*_EXACT])
    texts = np.frombuffer(b"".join(table[KEY].to_pylist()), np.uint64)[::2]
    addresses = b"".join(one[:8] or bytes(8) for one in table[ADDRESS].to_pylist())
    return np.stack([texts, text_keys(texts_of(table["id"]))[:, 0], np.frombuffer(addresses, np.uint64)])


def _occur_twice(numbers: Hashes) -> NDArray[np.bool_]:
    """Return which of these numbers occur more than once, except 0."""
    _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return np.asarray((counts[places] > 1) & (numbers != 0))


def _save(arrays: Mapping[str, NDArray[Any]], into: Path) -> None:
    for name, array in arrays.items():
        write_array(into / name, array)


def _save_decisions(decisions: Decisions, parts: list[Part], into: Path) -> None:
    """Write the decisions, and the ids that rejects will name, for which each part is read only once here."""
    named = np.unique(decisions.survivors[decisions.fates != Fate.KEPT])
    _save({f"{name}.npy": array for name, array in decisions._asdict().items()} | {_NAMED: named}, into)
    schema = pa.schema([("id", pa.large_string())])
    with pa.OSFile(str(into / _NAMES), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        for part in parts:
            if len(rows := part.rows_among(named)):
                ids = part.table(["id"])["id"].take(pa.array(rows)).cast(pa.large_string())
                file.write_table(pa.table({"id": ids}, schema=schema))
