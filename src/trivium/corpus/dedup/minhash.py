"""Near duplicates: MinHash bands propose pairs, their true Jaccard similarity decides.

A document is the set of its shingles (runs of consecutive words, lower case). The chance that one of
`bands` x `rows` bands proposes a pair of similarity J is 1 - (1 - J^rows)^bands.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from trivium.seeds import generator_for

Hashes = NDArray[np.uint64]

_WORDS = re.compile(r"\w+")
_ODD = np.uint64(0x9E3779B97F4A7C15)
_EMPTY = np.iinfo(np.uint64).max


def shingles(text: str, *, size: int) -> Hashes:
    """Sorted distinct 64-bit hashes of every `size` consecutive words; of the whole text if it has fewer."""
    words = np.fromiter(map(_word_hash, _WORDS.findall(text.lower())), dtype=np.uint64)
    if len(words) == 0:
        return words
    size = min(size, len(words))
    count = len(words) - size + 1
    rolled = np.zeros(count, dtype=np.uint64)
    for k in range(size):
        rolled = rolled * _ODD + words[k : k + count]
    return np.unique(_mixed(rolled))


def jaccard(a: Hashes, b: Hashes) -> float:
    """Shared over all shingles; 0 when either is empty."""
    if len(a) == 0 or len(b) == 0:
        return 0.0
    shared = len(np.intersect1d(a, b, assume_unique=True))
    return shared / (len(a) + len(b) - shared)


class MinHash:
    """Signatures: for each of `bands` x `rows` hash functions the smallest value over a document's shingles."""

    def __init__(self, *, bands: int, rows: int, seed: int) -> None:
        """`seed` is the run's: equal seeds give equal signatures."""
        generator = generator_for(seed, "minhash")
        self.bands, self.rows = bands, rows
        self._factors = generator.integers(0, 2**63, bands * rows, dtype=np.uint64) * np.uint64(
            2
        ) + np.uint64(1)
        self._offsets = generator.integers(0, 2**63, bands * rows, dtype=np.uint64)

    def band_keys(self, hashes: Hashes) -> Hashes:
        """One key per band, shape [bands]: equal keys make two documents a candidate pair."""
        smallest = np.full(self.bands * self.rows, _EMPTY, dtype=np.uint64)
        # a block of shingles at a time keeps the table of hashes in the processor's cache
        for start in range(0, len(hashes), 256):
            block = hashes[start : start + 256, None]
            table = block * self._factors + self._offsets
            table ^= table >> np.uint64(32)
            np.minimum(smallest, table.min(axis=0), out=smallest)
        keys = np.zeros(self.bands, dtype=np.uint64)
        for row in smallest.reshape(self.bands, self.rows).T:
            keys = _mixed(keys * _ODD + row)
        return keys


def candidate_pairs(keys: NDArray[np.uint64], *, chain: int = 8) -> set[tuple[int, int]]:
    """Pairs (earlier, later) of rows of `keys` [documents, bands] that agree in a band.

    In a bucket every document is paired with the first `chain` ones and the one before it, so that a page
    copied ten thousand times costs ten thousand pairs, not fifty million; the clusters are the same.
    """
    pairs: set[tuple[int, int]] = set()
    for band in range(keys.shape[1]):
        column = keys[:, band]
        order = np.argsort(column, kind="stable")
        ends = np.flatnonzero(np.diff(column[order])) + 1
        for bucket in np.split(order, ends):
            if len(bucket) > 1:
                pairs.update(_bucket_pairs(bucket.tolist(), chain))
    return pairs


def chance_of_candidacy(similarity: float, *, bands: int, rows: int) -> float:
    """Probability that a pair of this Jaccard similarity is proposed."""
    return float(1 - (1 - similarity**rows) ** bands)


def _bucket_pairs(bucket: Sequence[int], chain: int) -> Iterator[tuple[int, int]]:
    for position, document in enumerate(bucket):
        for earlier in bucket[: min(position, chain)]:
            yield earlier, document
        if position > chain:
            yield bucket[position - 1], document


@lru_cache(maxsize=1 << 18)
def _word_hash(word: str) -> int:
    return int.from_bytes(blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def _mixed(values: Hashes) -> Hashes:
    """A bijection that spreads every bit (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
