"""Between the passes: which of all documents repeat another, and which one of each group survives.

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

from trivium.corpus.config import DedupConfig
from trivium.corpus.dedup.cluster import components, ranks_of, survivors
from trivium.corpus.dedup.exact import SAME_ADDRESS, SAME_ID, SAME_TEXT, FirstOnly
from trivium.corpus.dedup.minhash import CHAIN, merged_pairs
from trivium.corpus.engine import Done, Engine, Result
from trivium.corpus.first_pass import ADDRESS, BANDS, KEY, Part, all_parts
from trivium.corpus.job import Job, lay_down, mapped, read_array, read_job, save_array, write_array
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
from trivium.corpus.steps import figure_of


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
    """Which documents survive others: the rank of the source of each, and its figure, where one counts."""

    ranks: NDArray[np.int64]
    quality: NDArray[np.float64] | None

    def of(self, rows: NDArray[np.int64]) -> "Standing":
        """That of these documents."""
        return Standing(self.ranks[rows], None if self.quality is None else self.quality[rows])

    def order(self) -> NDArray[np.int64]:
        """The documents' numbers, those that survive others first; those that stand alike as they come."""
        figures = np.zeros(len(self.ranks)) if self.quality is None else self.quality
        return np.lexsort((-figures, self.ranks))


class Decisions(NamedTuple):
    """For each document, by its number: its fate, the one that survives for it or itself, and its largest verified
    similarity."""

    fates: NDArray[np.uint8]
    survivors: NDArray[np.int64]
    similarities: NDArray[np.float64]


def decide(job: Job, parts: list[Part], engine: Engine, done: Done) -> None:
    """Compare all documents and lay down the decisions; what was laid down before is not done again."""
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


def decisions_of(job: Job, part: Part) -> Decisions:
    """What was decided about the documents of one part."""
    files = (job.path(_DECIDED, f"{name}.npy") for name in Decisions._fields)
    return Decisions(*(mapped(file)[part.first : part.end] for file in files))


def pairs_of_band(work: str, item: str) -> Result:
    """The task of one band: pairs of documents that agree in it."""
    job = read_job(work)
    path = job.path(_PAIRS, f"{item}.npy")
    if not path.is_file():
        # copied, as each file that is mapped is one that is open, and a process may have a thousand
        keys = np.concatenate([mapped(part.folder / BANDS)[int(item)].copy() for part in all_parts(job)])
        keys[mapped(job.path(_FATES)) != Fate.KEPT] = NO_SHINGLES
        save_array(path, pairs_in_band(keys, chain=CHAIN))
    return {}


def shingles_of_part(work: str, item: str) -> Result:
    """The task of one part: the shingle sets of its documents that stand in a pair."""
    job = read_job(work)
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
    """The task of one part: the similar pairs whose later document is in it, with their similarity."""
    job = read_job(work)
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
    # a held-out text wins over any other, so that training never sees it
    priority = (_HELDOUT, *config.priority)
    sources = (part.table(["source"])["source"].to_pylist() for part in parts[1:])
    heldout = ranks_of([_HELDOUT] * parts[0].documents, priority=priority)
    ranks = np.concatenate([heldout, *(ranks_of(one, priority=priority) for one in sources)])
    return Standing(ranks, qualities(parts, config.quality) if config.quality else None)


def _exact(parts: list[Part], standing: Standing) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Fates after exact deduplication, and of each document the one that stays for it, or itself: the first in their
    standing. Held-out documents are all kept.

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
    """A number for text, id and address of each document, [3, documents]: equal for what is equal; 0 is nothing."""
    table = part.table(list(_EXACT))
    texts = np.frombuffer(b"".join(table[KEY].to_pylist()), np.uint64)[::2]
    addresses = b"".join(one[:8] or bytes(8) for one in table[ADDRESS].to_pylist())
    return np.stack([texts, text_keys(texts_of(table["id"]))[:, 0], np.frombuffer(addresses, np.uint64)])


def _stand_twice(numbers: Hashes) -> NDArray[np.bool_]:
    """Which of these stand there more than once, nothing aside."""
    order = np.argsort(numbers)
    same = numbers[order[1:]] == numbers[order[:-1]]
    found = np.zeros(len(numbers), dtype=bool)
    found[order[1:][same]] = found[order[:-1][same]] = True
    found[numbers == 0] = False
    return found


def _near(
    standing: Standing, heldout: int, exact: NDArray[np.uint8], similar: NDArray[np.float64]
) -> Decisions:
    """heldout: how many documents are; they come first. similar: [pairs, 3], two documents and their similarity."""
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
    """This figure of each document's metadata, by the path of `statistics`; the lowest of all where it is missing."""
    found = [
        figure_of(json.loads(text), figure)
        for part in parts
        for text in part.table(["metadata"])["metadata"].to_pylist()
    ]
    return np.array(found, np.float64)


def _sets(job: Job, number: str) -> tuple[ShingleSets, NDArray[np.int64]]:
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


def survivor_ids(job: Job, numbers: NDArray[np.int64]) -> list[str]:
    """The ids of documents that survived for others, by their numbers."""
    named = mapped(job.path(_DECIDED, _NAMED))
    with pa.memory_map(str(job.path(_DECIDED, _NAMES))) as file:
        names = pa.ipc.open_file(file).read_all()["id"]
        found: list[str] = names.take(pa.array(np.searchsorted(named, numbers))).to_pylist()
    return found


def _save_decisions(decisions: Decisions, parts: list[Part], into: Path) -> None:
    """The decisions, and the ids that rejects will name: looked up here, where each part is read once."""
    named = np.unique(decisions.survivors[decisions.fates != Fate.KEPT])
    _save_all({f"{name}.npy": array for name, array in decisions._asdict().items()} | {_NAMED: named}, into)
    schema = pa.schema([("id", pa.large_string())])
    with pa.OSFile(str(into / _NAMES), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        for part in parts:
            rows = _inside(named, part) - part.first
            if len(rows):
                ids = part.table(["id"])["id"].take(pa.array(rows)).cast(pa.large_string())
                file.write_table(pa.table({"id": ids}, schema=schema))
