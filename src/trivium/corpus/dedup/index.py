"""An index of earlier documents, with which a new snapshot of a crawl is compared without the old texts.

index.json            format, what the keys depend on, and the snapshots in order: key, parts, documents
parts/NNNNN-NNNNN/    of some documents: ids.parquet, bands.npy [bands, documents], hashes.npy and offsets.npy (the
                      shingle set of each)

A snapshot belongs to the index from the moment that index.json names it. Parts that it does not name are ignored.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trivium.corpus.config import DedupConfig
from trivium.corpus.dedup.groups import components, ranks_of, survivors
from trivium.corpus.dedup.minhash import CHAIN, MinHash, merged_pairs
from trivium.corpus.document import Document
from trivium.corpus.kernels.shingles import Pairs, ShingleSets, jaccard_of_pairs, pairs_in_band, shingle_sets
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.steps import figure_of
from trivium.corpus.work import lay_down, mapped, write_array
from trivium.errors import DataError
from trivium.provenance import write_json
from trivium.untrusted import read_json

FORMAT = "trivium-dedup-index-1"
WORDS_VERSION = 2  # of the definition of a word in kernels/texts.py
INDEX, PARTS = "index.json", "parts"
_OLD = "\x00"  # stands for the source of what was seen before; no real source has this name


class IndexPart(NamedTuple):
    """Some documents of the index: their folder, the number of the first one, and how many they are."""

    folder: Path
    first: int
    documents: int

    def bands(self) -> NDArray[np.uint64]:
        """Return the band keys, [bands, documents]."""
        return mapped(self.folder / "bands.npy")

    def sets(self) -> ShingleSets:
        """Return the shingle set of each document."""
        return ShingleSets(mapped(self.folder / "hashes.npy"), mapped(self.folder / "offsets.npy"))

    def column(self, name: str) -> list[Any]:
        """Return `id`, `source` or `quality` of each document."""
        found: list[Any] = pq.read_table(self.folder / "ids.parquet", columns=[name])[name].to_pylist()
        return found


class Found(NamedTuple):
    """For each new document: the number of its group's survivor, and its largest verified similarity to any other."""

    survivors: NDArray[np.int64]
    similarities: NDArray[np.float64]


def write_part(folder: Path, documents: Sequence[Document], config: DedupConfig, *, seed: int) -> None:
    """Write what documents are compared by."""
    texts = texts_of([document.text for document in documents])
    minhash = MinHash(bands=config.bands, rows=config.rows, shingle=config.shingle, seed=seed)
    sets = shingle_sets(texts, size=config.shingle)
    ids = {
        "id": pa.array([document.id for document in documents], pa.string()),
        "source": pa.array([document.source for document in documents], pa.string()),
        "quality": pa.array([figure_of(d.metadata, config.quality) for d in documents], pa.float64()),
    }

    def write(into: Path) -> None:
        pq.write_table(pa.table(ids), into / "ids.parquet", compression="zstd")
        write_array(into / "bands.npy", minhash.band_keys(texts))
        write_array(into / "hashes.npy", sets.hashes)
        write_array(into / "offsets.npy", sets.offsets)

    lay_down(folder, write)


def read_index(folder: Path, config: DedupConfig, *, seed: int) -> list[dict[str, Any]]:
    """Return the snapshots of an index; none if there is no index. DataError if its keys are of another kind."""
    path = folder / INDEX
    if not path.is_file():
        return []
    try:
        index = read_json(path)
        kept, asked = index["keys"], keys_of(config, seed=seed)
        snapshots: list[dict[str, Any]] = index["snapshots"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no index of documents ({error}); give another folder, or delete it") from None
    if index.get("format") != FORMAT or kept != asked:
        raise DataError(
            f"{path} was made with {kept}, now asked for: {asked}; give the same curate.dedup and seed, or a new index"
        )
    return snapshots


def add_snapshot(folder: Path, config: DedupConfig, key: str, parts: Sequence[Path], *, seed: int) -> None:
    """Copy the parts of a snapshot into an index, and then name it there."""
    snapshots = read_index(folder, config, seed=seed)
    (folder / PARTS).mkdir(parents=True, exist_ok=True)
    names = []
    for number, part in enumerate(parts):
        names.append(f"{len(snapshots):05d}-{number:05d}")
        shutil.rmtree(folder / PARTS / names[-1], ignore_errors=True)
        lay_down(folder / PARTS / names[-1], lambda into, part=part: _copy(part, into))  # type: ignore[misc]
    snapshots.append({"key": key, "parts": names})
    write_json(folder / INDEX, {"format": FORMAT, "keys": keys_of(config, seed=seed), "snapshots": snapshots})


def keys_of(config: DedupConfig, *, seed: int) -> dict[str, Any]:
    """Return the settings that band keys and shingle sets depend on."""
    own = {"bands": config.bands, "rows": config.rows, "shingle": config.shingle, "seed": seed}
    return {**own, "words": WORDS_VERSION}


def listed(folders: Sequence[Path], *, first: int = 0) -> list[IndexPart]:
    """Return the parts in these folders, with documents numbered from `first`."""
    parts = []
    for folder in folders:
        documents = pq.ParquetFile(folder / "ids.parquet").metadata.num_rows
        parts.append(IndexPart(folder, first, documents))
        first += documents
    return parts


def find_duplicates(old: Sequence[IndexPart], new: Sequence[IndexPart], config: DedupConfig) -> Found:
    """Return which document survives for the group of each new one: an old one if there is any, so all old ones stay.

    A new document is dropped exactly if one run over the old and the new documents, with the old ones first and
    preferred, would drop it. Pairs among old documents do not join groups.
    """
    parts = [*old, *new]
    first_new = new[0].first if new else 0
    pairs = _candidates(parts, first_new, bands=config.bands)
    similarity = _similarities(parts, pairs)
    similar = similarity >= config.threshold
    pairs, similarity = pairs[similar], similarity[similar]
    total = parts[-1].first + parts[-1].documents if parts else 0
    sources = [_OLD] * first_new + [source for part in new for source in part.column("source")]
    quality = np.concatenate([np.zeros(first_new), *(np.array(part.column("quality")) for part in new)])
    ranks = ranks_of(sources, priority=(_OLD, *config.priority))
    best = survivors(components(pairs, documents=total), ranks, quality)
    closest = np.zeros(total)
    for column in (0, 1):
        np.maximum.at(closest, pairs[:, column], similarity)
    return Found(best[first_new:], closest[first_new:])


def ids_of(parts: Sequence[IndexPart], numbers: NDArray[np.int64]) -> dict[int, str]:
    """Return the ids of documents by their numbers, which are sorted."""
    found: dict[int, str] = {}
    for part in parts:
        low, high = np.searchsorted(numbers, (part.first, part.first + part.documents))
        if low < high:
            ids = part.column("id")
            found.update((number, ids[number - part.first]) for number in numbers[low:high].tolist())
    return found


def _candidates(parts: Sequence[IndexPart], first_new: int, *, bands: int) -> Pairs:
    """Return the pairs that agree in a band and whose later document is new. One band is in memory at a time."""

    def of_band(band: int) -> Pairs:
        # Copied, because a mapped file stays open, and a process may only have about a thousand open files.
        keys = np.concatenate([np.empty(0, np.uint64), *(part.bands()[band].copy() for part in parts)])
        found = pairs_in_band(keys, chain=CHAIN)
        return found[found[:, 1] >= first_new]

    return merged_pairs(map(of_band, range(bands)))


def _similarities(parts: Sequence[IndexPart], pairs: Pairs) -> NDArray[np.float64]:
    """Return the true Jaccard similarity of each pair, computed for two parts at a time."""
    ends = np.array([part.first + part.documents for part in parts])
    owners = np.searchsorted(ends, pairs, side="right")
    # Sorted once: a large index has too many pairs of parts to search all pairs for each.
    order = np.lexsort((owners[:, 1], owners[:, 0]))
    both, begin = np.unique(owners[order], axis=0, return_index=True)
    found = np.zeros(len(pairs))
    for (left, right), rows in zip(both.tolist(), np.split(order, begin)[1:], strict=True):
        places = pairs[rows] - [parts[left].first, parts[right].first]
        found[rows] = jaccard_of_pairs(parts[left].sets(), parts[right].sets(), places)
    return found


def _copy(part: Path, into: Path) -> None:
    for file in part.iterdir():
        shutil.copyfile(file, into / file.name)
