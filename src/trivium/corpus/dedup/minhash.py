"""Near duplicates: MinHash bands propose pairs of documents, and their true Jaccard similarity decides.

A document is the set of its shingles (runs of consecutive words in lower case). One of `bands` bands of `rows` rows
proposes a pair of similarity J with probability 1 - (1 - J^rows)^bands.
"""

import math
from collections.abc import Iterable

import numpy as np

from trivium.corpus.config import DedupConfig
from trivium.corpus.kernels.shingles import Pairs, ShingleSets, band_keys, jaccard_of_pairs, shingle_sets, signatures
from trivium.corpus.kernels.texts import Texts, texts_of
from trivium.corpus.kernels.words import Hashes
from trivium.seeds import generator_for

MAX_COMPARED_TEXTS = 32  # texts in a crowded bucket are compared with this many of its first texts
_HALF, _LATER = np.uint64(32), np.uint64(2**32 - 1)  # a pair in 64 bits


class MinHash:
    """Computes band keys. Documents with an equal key in one band become a candidate pair."""

    def __init__(self, config: DedupConfig, *, seed: int) -> None:
        """seed: the run's. Equal seeds give equal keys."""
        self._config = config
        functions = 4 * math.ceil(config.bands * config.rows / 4)
        drawn = generator_for(seed, "minhash").integers(0, 2**31, (2, functions), dtype=np.uint32)
        self._multipliers = drawn * np.uint32(2) + np.uint32(1)

    def band_keys(self, texts: Texts) -> Hashes:
        """Return one key for each band and text, [bands, texts]."""
        smallest = signatures(texts, size=self._config.shingle, multipliers=self._multipliers)
        return band_keys(smallest, bands=self._config.bands, rows=self._config.rows)


def shingles(text: str, *, size: int) -> Hashes:
    """Return sorted distinct 64-bit hashes of every `size` consecutive words; of the whole text if it has fewer."""
    return shingle_sets(texts_of([text]), size=size).hashes


def jaccard(a: Hashes, b: Hashes) -> float:
    """Return the Jaccard similarity of two sets of shingles; 0 if both are empty."""
    sets = ShingleSets(np.concatenate([a, b]), np.array([0, len(a), len(a) + len(b)]))
    return float(jaccard_of_pairs(sets, sets, np.array([[0, 1]]))[0])


def merged_pairs(lists: Iterable[Pairs]) -> Pairs:
    """Merge lists of pairs into one sorted list of distinct pairs, [pairs, 2]. Document numbers are below 2^32.

    Memory holds the distinct pairs and one list, because all bands propose mostly the same pairs.
    """
    merged = np.empty(0, np.uint64)
    for pairs in lists:
        numbers = pairs.view(np.uint64)
        merged = np.union1d(merged, numbers[:, 0] << _HALF | numbers[:, 1])
    return np.stack([merged >> _HALF, merged & _LATER], axis=1).view(np.int64)
