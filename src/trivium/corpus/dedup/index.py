"""An index of earlier documents, with which a new snapshot of a crawl is compared without the earlier texts.

index.json            format, the settings that the keys depend on, and the snapshots in order: key, parts
parts/NNNNN-NNNNN/    some documents: ids.parquet, bands.npy [bands, documents], hashes.npy and offsets.npy (the
                      shingle set of each)

A snapshot belongs to the index from the moment that index.json names it. Parts that it does not name are ignored.
"""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trivium.corpus.config import DedupConfig
from trivium.corpus.dedup.groups import groups_of, ranks_of
from trivium.corpus.dedup.minhash import MAX_COMPARED_TEXTS, MinHash, merged_pairs
from trivium.corpus.document import Document
from trivium.corpus.kernels.shingles import Pairs, ShingleSets, jaccard_of_pairs, pairs_in_band, shingle_sets
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.steps import figure_of
from trivium.corpus.work import lay_down, mapped, write_array
from trivium.errors import DataError
from trivium.provenance import write_json
from trivium.untrusted import read_json

FORMAT = "trivium-dedup-index-1"
WORDS_VERSION = 2  # version of the definition of a word in kernels/texts.py
INDEX, PARTS = "index.json", "parts"
_OLD = "\x00"  # the source of earlier documents; no real source has this name


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
        values: list[Any] = pq.read_table(self.folder / "ids.parquet", columns=[name])[name].to_pylist()
        return values


def write_part(folder: Path, documents: Sequence[Document], config: DedupConfig, *, seed: int) -> None:
    """Write the keys by which documents are compared."""
    texts = texts_of([document.text for document in documents])
    sets = shingle_sets(texts, size=config.shingle)
    ids = {
        "id": pa.array([document.id for document in documents], pa.string()),
        "source": pa.array([document.source for document in documents], pa.string()),
        "quality": pa.array([figure_of(d.metadata, config.quality) for d in documents], pa.float64()),
    }

    def write(into: Path) -> None:
        pq.write_table(pa.table(ids), into / "ids.parquet", compression="zstd")
        write_array(into / "bands.npy", MinHash(config, seed=seed).band_keys(texts))
        write_array(into / "hashes.npy", sets.hashes)
        write_array(into / "offsets.npy", sets.offsets)

    lay_down(folder, write)


def read_index(folder: Path, config: DedupConfig, *, seed: int) -> list[dict[str, Any]]:
    """Return the snapshots of an index; an empty list if there is no index. Raises DataError if its keys were made with
    other settings."""
    path = folder / INDEX
    if not path.is_file():
        return []
    try:
        index = read_json(path)
        stored, wanted = index["keys"], _settings_of_keys(config, seed)
        snapshots: list[dict[str, Any]] = index["snapshots"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no index of documents ({error}); give another folder, or delete it") from None
    if index.get("format") != FORMAT or stored != wanted:
        raise DataError(
            f"{path} was made with {stored}, now requested: {wanted}; give the same curate.dedup and seed, or a new "
            f"index"
        )
    return snapshots


def add_snapshot(folder: Path, config: DedupConfig, key: str, parts: Sequence[Path], *, seed: int) -> None:
    """Copy the parts of a snapshot into an index, and then name it in index.json."""
    snapshots = read_index(folder, config, seed=seed)
    (folder / PARTS).mkdir(parents=True, exist_ok=True)
    names = [f"{len(snapshots):05d}-{number:05d}" for number in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        shutil.rmtree(folder / PARTS / name, ignore_errors=True)
        lay_down(folder / PARTS / name, partial(shutil.copytree, part, dirs_exist_ok=True))
    snapshots.append({"key": key, "parts": names})
    keys = _settings_of_keys(config, seed)
    write_json(folder / INDEX, {"format": FORMAT, "keys": keys, "snapshots": snapshots})


def _settings_of_keys(config: DedupConfig, seed: int) -> dict[str, Any]:
    """Return the settings that band keys and shingle sets depend on."""
    own = {"bands": config.bands, "rows": config.rows, "shingle": config.shingle, "seed": seed}
    return {**own, "words": WORDS_VERSION}


def numbered(folders: Sequence[Path], *, first: int = 0) -> list[IndexPart]:
    """Return the parts in these folders, with documents numbered from `first`."""
    parts = []
    for folder in folders:
        documents = pq.ParquetFile(folder / "ids.parquet").metadata.num_rows
        parts.append(IndexPart(folder, first, documents))
        first += documents
    return parts


def find_duplicates(
    old: Sequence[IndexPart], new: Sequence[IndexPart], config: DedupConfig
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return, for each new document, the number of the document that survives for it or its own, and its largest
    verified similarity to another document.

    A new document is dropped exactly if one run over the old and the new documents, with the old ones first and
    preferred, would drop it. All old documents survive, so pairs among them do not join groups.
    """
    parts = [*old, *new]
    first_new = new[0].first if new else 0
    pairs = _candidates(parts, first_new, bands=config.bands)
    similarity = _similarities(parts, pairs)
    similar = similarity >= config.threshold
    sources = [_OLD] * first_new + [source for part in new for source in part.column("source")]
    quality = np.concatenate([np.zeros(first_new), *(np.array(part.column("quality")) for part in new)])
    ranks = ranks_of(sources, priority=(_OLD, *config.priority))
    survivors, closest = groups_of(pairs[similar], similarity[similar], ranks, quality)
    return survivors[first_new:], closest[first_new:]


def ids_of(parts: Sequence[IndexPart], numbers: NDArray[np.int64]) -> dict[int, str]:
    """Return the ids of documents by their sorted numbers."""
    ids: dict[int, str] = {}
    for part in parts:
        low, high = np.searchsorted(numbers, (part.first, part.first + part.documents))
        if low < high:
            column = part.column("id")
            ids.update((number, column[number - part.first]) for number in numbers[low:high].tolist())
    return ids


def _candidates(parts: Sequence[IndexPart], first_new: int, *, bands: int) -> Pairs:
    """Return the pairs that agree in a band and whose later document is new. One band is in memory at a time."""

    def of_band(band: int) -> Pairs:
        # Copy the band, because a mapped file stays open, and a process may only have about a thousand open files.
        keys = np.concatenate([np.empty(0, np.uint64), *(part.bands()[band].copy() for part in parts)])
        pairs = pairs_in_band(keys, chain=MAX_COMPARED_TEXTS)
        return pairs[pairs[:, 1] >= first_new]

    return merged_pairs(map(of_band, range(bands)))


def _similarities(parts: Sequence[IndexPart], pairs: Pairs) -> NDArray[np.float64]:
    """Return the Jaccard similarity of each pair, computed for two parts at a time."""
    ends = np.array([part.first + part.documents for part in parts])
    owners = np.searchsorted(ends, pairs, side="right")
    # Pairs are sorted once, because a large index has too many pairs of parts to search all pairs for each.
    order = np.lexsort((owners[:, 1], owners[:, 0]))
    both, begin = np.unique(owners[order], axis=0, return_index=True)
    similarities = np.zeros(len(pairs))
    for (left, right), rows in zip(both.tolist(), np.split(order, begin)[1:], strict=True):
        places = pairs[rows] - [parts[left].first, parts[right].first]
        similarities[rows] = jaccard_of_pairs(parts[left].sets(), parts[right].sets(), places)
    return similarities
