"""The comparison of all documents, between the passes: which repeat another, and which of each group survives.

First equal texts and equal ids, in the order of the documents; then near duplicates among what is left, band
by band and part by part, so that memory holds keys and pairs but never the texts.
"""

import json
import shutil
from collections.abc import Mapping
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trivium.corpus.config import CurateConfig, DedupConfig
from trivium.corpus.dedup.groups import SAME_ADDRESS, SAME_ID, SAME_TEXT, FirstOnly, components, ranks_of, survivors
from trivium.corpus.dedup.minhash import CHAIN, merged_pairs
from trivium.corpus.engine import Done, Engine, Result
from trivium.corpus.kernels.shingles import (
    NO_SHINGLES,
    Pairs,
    ShingleSets,
    jaccard_of_pairs,
    pairs_in_band,
    shingle_sets,
)
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.kernels.words import Hashes, text_keys
from trivium.corpus.parts import ADDRESS, BANDS, KEY, CurationJob, Part, all_parts
from trivium.corpus.steps import figure_of
from trivium.corpus.work import lay_down, mapped, read_array, read_job, save_array, write_array


class Fate(IntEnum):
    """What comparison with all other documents decided."""

    KEPT = 0
    SAME_TEXT = 1
    SAME_ID = 2
    SAME_ADDRESS = 3
    NEAR = 4
    NEAR_HELDOUT = 5


REASONS = {
    Fate.SAME_TEXT: SAME_TEXT,
    Fate.SAME_ID: SAME_ID,
    Fate.SAME_ADDRESS: SAME_ADDRESS,
    Fate.NEAR: "near duplicate",
    Fate.NEAR_HELDOUT: "near duplicate of a held-out document",
}
_HELDOUT = "\x00"  # stands for the source of the held-out documents; no real source has this name
_FATES = "fates.npy"  # after exact deduplication
_DECIDED, _PAIRS, _CANDIDATES, _SHINGLES, _SIMILAR = "decided", "pairs", "candidates", "shingles", "similar"
_BY_LATER, _COMPARED = "by_later.npy", "compared.npy"  # pairs by their later document; all that stand in one
_NAMED, _NAMES = "named.npy", "names.arrow"  # survivors of other documents, sorted, and the id of each
_EXACT = (KEY, "id", ADDRESS)  # what documents may have in common exactly


class Standing(NamedTuple):
    """What decides which documents survive: the rank of each one's source, and its quality figure, if one is set."""

    ranks: NDArray[np.int64]
    quality: NDArray[np.float64] | None

    def of(self, rows: NDArray[np.int64]) -> "Standing":
        """Select these documents."""
        return Standing(self.ranks[rows], None if self.quality is None else self.quality[rows])

    def order(self) -> NDArray[np.int64]:
        """Return the documents' numbers, best first; equals stay in their order."""
        figures = np.zeros(len(self.ranks)) if self.quality is None else self.quality
        return np.lexsort((-figures, self.ranks))


class Decisions(NamedTuple):
    """For each document: its fate, the number of the document that survives for it or its own, and its largest verified
    similarity."""

    fates: NDArray[np.uint8]
    survivors: NDArray[np.int64]
    similarities: NDArray[np.float64]


def decide(job: CurationJob, parts: list[Part], engine: Engine, done: Done) -> None:
    """Compare all documents and write the decisions. Work that is already on disk is not repeated."""
    if job.path(_DECIDED).is_dir():
        return
    standing = _standing(parts, job.config.dedup)
    fates, firsts = _exact(parts, standing)
    _save_once(job.path(_FATES), fates)
    bands = [str(band) for band in range(job.config.dedup.bands)]
    engine.map(partial(pairs_of_band, str(job.work)), bands, done, light=True)
    if not job.path(_CANDIDATES).is_dir():
        pairs = merged_pairs(read_array(job.path(_PAIRS, f"{band}.npy")) for band in bands)
        compared = np.zeros(len(fates), dtype=bool)
        compared[pairs] = True
        by_later = pairs[np.argsort(pairs[:, 1], kind="stable")]
        arrays = {_BY_LATER: by_later, _COMPARED: np.flatnonzero(compared)}
        lay_down(job.path(_CANDIDATES), partial(_save_all, arrays))
    numbers = [str(number) for number in range(len(parts))]
    engine.map(partial(shingles_of_part, str(job.work)), numbers, done, light=True)
    engine.map(partial(similar_to_part, str(job.work)), numbers, done, light=True)
    found = [read_array(job.path(_SIMILAR, f"{number}.npy")) for number in numbers]
    near = _near(standing, parts[0].documents, fates, np.concatenate(found))
    decisions = near._replace(survivors=near.survivors[firsts])
    lay_down(job.path(_DECIDED), partial(_save_decisions, decisions, parts))
    for name in (_PAIRS, _CANDIDATES, _SHINGLES, _SIMILAR):
        shutil.rmtree(job.path(name))


def decisions_of(job: CurationJob, part: Part) -> Decisions:
    """Return what was decided about the documents of one part."""
    files = (job.path(_DECIDED, f"{name}.npy") for name in Decisions._fields)
    return Decisions(*(mapped(file)[part.first : part.end] for file in files))


def pairs_of_band(work: str, item: str) -> Result:
    """Find the pairs of documents that agree in a band: the task of one band."""
    job = read_job(work, CurateConfig)
    path = job.path(_PAIRS, f"{item}.npy")
    if not path.is_file():
        # Copied, because a mapped file stays open, and a process may only have about a thousand open files.
        keys = np.concatenate([mapped(part.folder / BANDS)[int(item)].copy() for part in all_parts(job)])
        keys[mapped(job.path(_FATES)) != Fate.KEPT] = NO_SHINGLES
        save_array(path, pairs_in_band(keys, chain=CHAIN))
    return {}


def shingles_of_part(work: str, item: str) -> Result:
    """Write the shingle sets of those documents of a part that are in a pair: a task of one part."""
    job = read_job(work, CurateConfig)
    part = all_parts(job)[int(item)]
    folder = job.path(_SHINGLES, item)
    if not folder.is_dir():
        rows = _inside(mapped(job.path(_CANDIDATES, _COMPARED)), part) - part.first
        texts = texts_of(part.table(["text"])["text"].take(rows)) if len(rows) else texts_of([])
        sets = shingle_sets(texts, size=job.config.dedup.shingle)
        arrays = {"rows.npy": rows, "hashes.npy": sets.hashes, "offsets.npy": sets.offsets}
        lay_down(folder, partial(_save_all, arrays))
    return {}


def similar_to_part(work: str, item: str) -> Result:
    """Write the similar pairs whose later document is in a part, with their similarity: a task of one part."""
    job = read_job(work, CurateConfig)
    path = job.path(_SIMILAR, f"{item}.npy")
    if path.is_file():
        return {}
    parts = all_parts(job)
    here = parts[int(item)]
    candidates = mapped(job.path(_CANDIDATES, _BY_LATER))
    low, high = np.searchsorted(candidates[:, 1], (here.first, here.end))
    pairs = candidates[low:high][np.argsort(candidates[low:high, 0], kind="stable")]
    right, right_rows = _sets(job, item)
    found = [np.empty((0, 3))]
    ends = np.array([part.end for part in parts])
    for number in np.unique(np.searchsorted(ends, pairs[:, 0], side="right")).tolist():
        part = parts[number]
        low, high = np.searchsorted(pairs[:, 0], (part.first, part.end))
        left, left_rows = _sets(job, str(number))
        places = np.stack(
            [
                np.searchsorted(left_rows, pairs[low:high, 0] - part.first),
                np.searchsorted(right_rows, pairs[low:high, 1] - here.first),
            ],
            axis=1,
        )
        similarity = jaccard_of_pairs(left, right, places)
        rows = np.column_stack([pairs[low:high], similarity])
        found.append(rows[similarity >= job.config.dedup.threshold])
    save_array(path, np.concatenate(found))
    return {}


def _standing(parts: list[Part], config: DedupConfig) -> Standing:
    # A held-out text wins over any other, so that training never sees it.
    priority = (_HELDOUT, *config.priority)
    sources = (part.table(["source"])["source"].to_pylist() for part in parts[1:])
    heldout = ranks_of([_HELDOUT] * parts[0].documents, priority=priority)
    ranks = np.concatenate([heldout, *(ranks_of(one, priority=priority) for one in sources)])
    return Standing(ranks, qualities(parts, config.quality) if config.quality else None)


def _exact(parts: list[Part], standing: Standing) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the fates after exact deduplication and, for each document, the number of the best one that it repeats, or
    its own. Held-out documents are all kept.

    Only documents that may repeat something are looked at one by one; of the others memory holds three numbers each.
    """
    keys = np.concatenate([_numbers(part) for part in parts[1:]], axis=1)
    rows = parts[0].documents + np.flatnonzero(np.any(list(map(_stand_twice, keys)), axis=0))
    picked = [part.table(list(_EXACT)).take(pa.array(_inside(rows, part) - part.first)) for part in parts[1:]]
    columns = zip(*(pa.concat_tables(picked)[name].to_pylist() for name in _EXACT), strict=True)
    compared, first = list(columns), FirstOnly()
    fate_of = {reason: fate for fate, reason in REASONS.items()}
    fates, firsts = np.full(len(standing.ranks), Fate.KEPT, np.uint8), np.arange(len(standing.ranks))
    for place in standing.of(rows).order().tolist():
        row = int(rows[place])
        if (found := first.repeats(row, *compared[place])) is not None:
            fates[row], firsts[row] = fate_of[found.reason], found.number
    return fates, firsts


def _numbers(part: Part) -> Hashes:
    """Hash text, id and address of each document, [3, documents]. 0 stands for no address."""
    table = part.table(list(_EXACT))
    texts = np.frombuffer(b"".join(table[KEY].to_pylist()), np.uint64)[::2]
    addresses = b"".join(one[:8] or bytes(8) for one in table[ADDRESS].to_pylist())
    return np.stack([texts, text_keys(texts_of(table["id"]))[:, 0], np.frombuffer(addresses, np.uint64)])


def _stand_twice(numbers: Hashes) -> NDArray[np.bool_]:
    """Return which of these numbers occur more than once, except 0."""
    order = np.argsort(numbers)
    same = numbers[order[1:]] == numbers[order[:-1]]
    found = np.zeros(len(numbers), dtype=bool)
    found[order[1:][same]] = found[order[:-1][same]] = True
    found[numbers == 0] = False
    return found


def _near(standing: Standing, heldout: int, exact: NDArray[np.uint8], similar: NDArray[np.float64]) -> Decisions:
    """Decide about near duplicates. similar: [pairs, 3], two documents and their similarity. heldout: the number of
    held-out documents, which come first."""
    pairs: Pairs = similar[:, :2].astype(np.int64)
    best = survivors(components(pairs, documents=len(exact)), *standing)
    closest = np.zeros(len(exact))
    for column in (0, 1):
        np.maximum.at(closest, pairs[:, column], similar[:, 2])
    fates = exact.copy()
    near = (best != np.arange(len(exact))) & (exact == Fate.KEPT)
    fates[near] = np.where(best[near] < heldout, Fate.NEAR_HELDOUT, Fate.NEAR)
    return Decisions(fates, best, closest)


def qualities(parts: list[Part], figure: str) -> NDArray[np.float64]:
    """Return a figure of each document's metadata, by its path; minus infinity if it is missing."""
    found = [
        figure_of(json.loads(text), figure)
        for part in parts
        for text in part.table(["metadata"])["metadata"].to_pylist()
    ]
    return np.array(found, np.float64)


def _sets(job: CurationJob, number: str) -> tuple[ShingleSets, NDArray[np.int64]]:
    folder = job.path(_SHINGLES, number)
    sets = ShingleSets(mapped(folder / "hashes.npy"), mapped(folder / "offsets.npy"))
    return sets, mapped(folder / "rows.npy")


def _inside(numbers: NDArray[np.int64], part: Part) -> NDArray[np.int64]:
    low, high = np.searchsorted(numbers, (part.first, part.end))
    return numbers[low:high]


def _save_once(path: Path, array: NDArray[np.uint8]) -> None:
    if not path.is_file():
        save_array(path, array)


def _save_all(arrays: Mapping[str, NDArray[Any]], into: Path) -> None:
    for name, array in arrays.items():
        write_array(into / name, array)


def survivor_ids(job: CurationJob, numbers: NDArray[np.int64]) -> list[str]:
    """Return the ids of documents that survived for others, by their numbers."""
    named = mapped(job.path(_DECIDED, _NAMED))
    with pa.memory_map(str(job.path(_DECIDED, _NAMES))) as file:
        names = pa.ipc.open_file(file).read_all()["id"]
        found: list[str] = names.take(pa.array(np.searchsorted(named, numbers))).to_pylist()
    return found


def _save_decisions(decisions: Decisions, parts: list[Part], into: Path) -> None:
    """Write the decisions, and the ids that rejects will name: here each part is read only once."""
    named = np.unique(decisions.survivors[decisions.fates != Fate.KEPT])
    _save_all({f"{name}.npy": array for name, array in decisions._asdict().items()} | {_NAMED: named}, into)
    schema = pa.schema([("id", pa.large_string())])
    with pa.OSFile(str(into / _NAMES), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        for part in parts:
            rows = _inside(named, part) - part.first
            if len(rows):
                ids = part.table(["id"])["id"].take(pa.array(rows)).cast(pa.large_string())
                file.write_table(pa.table({"id": ids}, schema=schema))
