"""Near duplicates: MinHash bands propose pairs, and their true Jaccard similarity decides.

A document is the set of its shingles (runs of consecutive words, lower case). The chance that one of
`bands` x `rows` bands proposes a pair of similarity J is 1 - (1 - J^rows)^bands.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trivium.corpus.config import DedupConfig
from trivium.corpus.kernels.shingles import (
    Pairs,
    ShingleSets,
    band_keys,
    jaccard_of_pairs,
    pairs_in_band,
    shingle_sets,
    signatures,
)
from trivium.corpus.kernels.texts import Texts, texts_of
from trivium.corpus.kernels.words import Hashes
from trivium.seeds import generator_for


class Similar(NamedTuple):
    """Pairs (earlier, later) of rows, shape [pairs, 2], and the Jaccard similarity of each, at least the threshold."""

    pairs: Pairs
    similarity: NDArray[np.float64]


def similar_pairs(column: pa.Array | pa.ChunkedArray, config: DedupConfig, *, seed: int) -> Similar:
    """Return every verified pair among the texts of an Arrow column that fits in memory."""
    minhash = MinHash(bands=config.bands, rows=config.rows, shingle=config.shingle, seed=seed)
    pairs = candidate_pairs(minhash.band_keys(texts_of(column)))
    rows = np.unique(pairs)
    sets = shingle_sets(texts_of(column.take(pa.array(rows))), size=config.shingle)
    similarity = jaccard_of_pairs(sets, sets, np.searchsorted(rows, pairs))
    similar = similarity >= config.threshold
    return Similar(pairs[similar], similarity[similar])


_HALF, _LATER = np.uint64(32), np.uint64(2**32 - 1)  # a pair in 64 bits
CHAIN = 32  # texts in a crowded bucket are compared with this many of its first texts


def shingles(text: str, *, size: int) -> Hashes:
    """Return sorted distinct 64-bit hashes of every `size` consecutive words; of the whole text if it has fewer."""
    return shingle_sets(texts_of([text]), size=size).hashes


def jaccard(a: Hashes, b: Hashes) -> float:
    """Return the Jaccard similarity of two sets of shingles; 0 if both are empty."""
    sets = ShingleSets(np.concatenate([a, b]), np.array([0, len(a), len(a) + len(b)]))
    return float(jaccard_of_pairs(sets, sets, np.array([[0, 1]]))[0])


class MinHash:
    """Computes band keys. Documents that agree in one become a candidate pair."""

    def __init__(self, *, bands: int, rows: int, shingle: int, seed: int) -> None:
        """`shingle`: words in a shingle. `seed` is the run's: equal seeds give equal keys."""
        self.bands, self.rows, self.shingle = bands, rows, shingle
        functions = 4 * math.ceil(bands * rows / 4)
        drawn = generator_for(seed, "minhash").integers(0, 2**31, (2, functions), dtype=np.uint32)
        self._multipliers = drawn * np.uint32(2) + np.uint32(1)

    def band_keys(self, texts: Texts) -> Hashes:
        """Return one key for each band and text, [bands, texts]."""
        smallest = signatures(texts, size=self.shingle, multipliers=self._multipliers)
        return band_keys(smallest, bands=self.bands, rows=self.rows)


def candidate_pairs(keys: Hashes) -> Pairs:
    """Return the pairs (earlier, later) of documents that agree in a band of `keys` [bands, documents], sorted."""
    return merged_pairs(pairs_in_band(band, chain=CHAIN) for band in keys)


def merged_pairs(lists: Iterable[Pairs]) -> Pairs:
    """Merge lists of pairs into one, sorted, each pair once, [pairs, 2]. There must be fewer than 2^32 documents.

    Memory holds the different pairs and one list: all bands propose mostly the same pairs.
    """
    found = np.empty(0, np.uint64)
    for pairs in lists:
        numbers = pairs.view(np.uint64)
        found = np.concatenate([found, numbers[:, 0] << _HALF | numbers[:, 1]])
        found.sort()
        new = np.ones(len(found), dtype=bool)
        np.not_equal(found[1:], found[:-1], out=new[1:])
        found = found[new]
    return np.stack([found >> _HALF, found & _LATER], axis=1).view(np.int64)
