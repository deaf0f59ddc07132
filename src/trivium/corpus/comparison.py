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
from numpy.typing import NDArray

from trivium.corpus.dedup.cluster import components, ranks_of, survivors
from trivium.corpus.dedup.exact import SAME_ADDRESS, SAME_ID, SAME_TEXT, FirstOnly
from trivium.corpus.dedup.minhash import CHAIN, merged_pairs
from trivium.corpus.engine.engine import Done, Engine, Result
from trivium.corpus.first_pass import ADDRESS, BANDS, KEY, Part, all_parts
from trivium.corpus.job import Job, lay_down, mapped, read_job, save_array
from trivium.corpus.kernels.shingles import (
    NO_SHINGLES,
    Pairs,
    ShingleSets,
    jaccard_of_pairs,
    pairs_in_band,
    shingle_sets,
)
from trivium.corpus.kernels.texts import texts_of
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
_DECIDED, _PAIRS, _SHINGLES, _SIMILAR, _CANDIDATES = (
    "decided",
    "pairs",
    "shingles",
    "similar",
    "candidates.npy",
)


class Decisions(NamedTuple):
    """For each document, by its number: its fate, its group's survivor, its largest verified similarity."""

    fates: NDArray[np.uint8]
    survivors: NDArray[np.int64]
    similarities: NDArray[np.float64]


def decide(job: Job, parts: list[Part], engine: Engine, done: Done) -> None:
    """Compare all documents and lay down the decisions; what was laid down before is not done again."""
    if job.path(_DECIDED).is_dir():
        return
    fates, sources = _exact(parts)
    _save_once(job.path(_FATES), fates)
    bands = [str(band) for band in range(job.config.dedup.bands)]
    engine.map(partial(pairs_of_band, str(job.work)), bands, done, light=True)
    if not job.path(_CANDIDATES).is_file():
        lists = [np.load(job.path(_PAIRS, f"{band}.npy"), allow_pickle=False) for band in bands]
        save_array(job.path(_CANDIDATES), merged_pairs(lists))
    numbers = [str(number) for number in range(len(parts))]
    engine.map(partial(shingles_of_part, str(job.work)), numbers, done, light=True)
    engine.map(partial(similar_to_part, str(job.work)), numbers, done, light=True)
    found = [np.load(job.path(_SIMILAR, f"{number}.npy"), allow_pickle=False) for number in numbers]
    decisions = _near(job, parts, fates, sources, np.concatenate(found))
    lay_down(job.path(_DECIDED), partial(_save_all, decisions._asdict()))
    for name in (_PAIRS, _SHINGLES, _SIMILAR):
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
        keys = np.concatenate([mapped(part.folder / BANDS)[int(item)] for part in all_parts(job)])
        keys[mapped(job.path(_FATES)) != Fate.KEPT] = NO_SHINGLES
        save_array(path, pairs_in_band(keys, chain=CHAIN))
    return {}


def shingles_of_part(work: str, item: str) -> Result:
    """The task of one part: the shingle sets of its documents that stand in a pair."""
    job = read_job(work)
    part = all_parts(job)[int(item)]
    folder = job.path(_SHINGLES, item)
    if not folder.is_dir():
        rows = _inside(np.unique(mapped(job.path(_CANDIDATES))), part) - part.first
        texts = texts_of(part.table(["text"])["text"].take(rows)) if len(rows) else texts_of([])
        sets = shingle_sets(texts, size=job.config.dedup.shingle)
        arrays = {"rows": rows, "hashes": sets.hashes, "offsets": sets.offsets}
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
    candidates = mapped(job.path(_CANDIDATES))
    pairs = candidates[(candidates[:, 1] >= here.first) & (candidates[:, 1] < here.end)]
    right, right_rows = _sets(job, item)
    found = [np.empty((0, 3))]
    for number, part in enumerate(parts[: int(item) + 1]):
        low, high = np.searchsorted(pairs[:, 0], (part.first, part.end))
        if low == high:
            continue
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


def _exact(parts: list[Part]) -> tuple[NDArray[np.uint8], list[str]]:
    """Fates after exact deduplication, and the source of each document; held-out ones are all kept."""
    first = FirstOnly()
    fate_of = {"": Fate.KEPT, **{reason: fate for fate, reason in REASONS.items()}}
    fates: list[int] = []
    sources: list[str] = []
    for number, part in enumerate(parts):
        table = part.table(["id", "source", KEY, ADDRESS])
        if number == 0:
            fates += [Fate.KEPT] * table.num_rows
            sources += [_HELDOUT] * table.num_rows
            continue
        sources += table["source"].to_pylist()
        columns = (table[name].to_pylist() for name in (KEY, "id", ADDRESS))
        fates += [fate_of[first.reason(*row)] for row in zip(*columns, strict=True)]
    return np.array(fates, np.uint8), sources


def _near(
    job: Job, parts: list[Part], exact: NDArray[np.uint8], sources: list[str], similar: NDArray[np.float64]
) -> Decisions:
    pairs: Pairs = similar[:, :2].astype(np.int64)
    # a held-out text wins over any other, so that training never sees it
    ranks = ranks_of(sources, priority=(_HELDOUT, *job.config.dedup.priority))
    quality = qualities(parts, job.config.dedup.quality) if job.config.dedup.quality else None
    best = survivors(components(pairs, documents=len(exact)), ranks, quality)
    closest = np.zeros(len(exact))
    for column in (0, 1):
        np.maximum.at(closest, pairs[:, column], similar[:, 2])
    fates = exact.copy()
    near = (best != np.arange(len(exact))) & (exact == Fate.KEPT)
    heldout = np.array([source == _HELDOUT for source in sources], dtype=bool)
    fates[near] = np.where(heldout[best[near]], Fate.NEAR_HELDOUT, Fate.NEAR)
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
        np.save(into / f"{name}.npy", array, allow_pickle=False)


def ids_of(parts: list[Part], numbers: set[int]) -> dict[int, str]:
    """The ids of documents by their numbers."""
    found: dict[int, str] = {}
    for part in parts:
        wanted = sorted(number for number in numbers if part.first <= number < part.end)
        if wanted:
            ids = part.table(["id"])["id"].take([number - part.first for number in wanted]).to_pylist()
            found.update(zip(wanted, ids, strict=True))
    return found
