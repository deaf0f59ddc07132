"""Near duplicates: MinHash bands propose pairs, their true Jaccard similarity decides.

A document is the set of its shingles (runs of consecutive words, lower case). The chance that one of
`bands` x `rows` bands proposes a pair of similarity J is 1 - (1 - J^rows)^bands.
"""

import math
from collections.abc import Iterable

import numpy as np

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

_HALF, _LATER = np.uint64(32), np.uint64(2**32 - 1)  # a pair in 64 bits
CHAIN = 32  # a text in a crowded bucket is compared with so many of its first ones


def shingles(text: str, *, size: int) -> Hashes:
    """Sorted distinct 64-bit hashes of every `size` consecutive words; of the whole text if it has fewer."""
    return shingle_sets(texts_of([text]), size=size).hashes


def jaccard(a: Hashes, b: Hashes) -> float:
    """Shared over all shingles; 0 when both are empty."""
    sets = ShingleSets(np.concatenate([a, b]), np.array([0, len(a), len(a) + len(b)]))
    return float(jaccard_of_pairs(sets, sets, np.array([[0, 1]]))[0])


class MinHash:
    """Band keys: what documents must agree in to become a candidate pair."""

    def __init__(self, *, bands: int, rows: int, shingle: int, seed: int) -> None:
        """`shingle`: words in a shingle. `seed` is the run's: equal seeds give equal keys."""
        self.bands, self.rows, self.shingle = bands, rows, shingle
        functions = 4 * math.ceil(bands * rows / 4)
        drawn = generator_for(seed, "minhash").integers(0, 2**31, (2, functions), dtype=np.uint32)
        self._multipliers = drawn * np.uint32(2) + np.uint32(1)

    def band_keys(self, texts: Texts) -> Hashes:
        """One key per band and text, shape [bands, texts]; equal keys propose a pair."""
        smallest = signatures(texts, size=self.shingle, multipliers=self._multipliers)
        return band_keys(smallest, bands=self.bands, rows=self.rows)


def candidate_pairs(keys: Hashes) -> Pairs:
    """Pairs (earlier, later) of documents that agree in a band, sorted, each once; `keys`: [bands, documents]."""
    return merged_pairs(pairs_in_band(band, chain=CHAIN) for band in keys)


def merged_pairs(lists: Iterable[Pairs]) -> Pairs:
    """Several lists of pairs as one, sorted, each pair once, shape [pairs, 2]; documents are fewer than 2^32.

    Memory holds the pairs that differ and one list: the bands of near duplicates propose much the same pairs.
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
