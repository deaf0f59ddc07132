"""Hashed n-grams, and the linear model on them."""

import numpy as np
import scipy.sparse as sp
from numba import uint64
from numpy.typing import NDArray

from trivium.corpus.kernels.cache import njit
from trivium.corpus.kernels.texts import Bytes, FoldTable, Offsets, Texts, fold_table
from trivium.corpus.kernels.words import longest_words, power_of_base, prefixes_of, run_hash

Buckets = NDArray[np.uint32]


def hashed_ngrams(texts: Texts, *, longest: int, bits: int, most_words: int | None = None) -> tuple[Offsets, Buckets]:
    """Return the bucket, below 2^bits, of every run of 1 … `longest` words of each text, including repetitions.

    Returns (offsets [texts + 1], buckets [offsets[-1]]). most_words: words used of each text, from its beginning.
    """
    limit = most_words if most_words is not None else np.iinfo(np.int64).max
    fold = fold_table()
    counts = np.zeros(len(texts.offsets), np.int64)
    _count(texts.data, texts.offsets, fold, longest, limit, counts)
    offsets = np.cumsum(counts)
    buckets = np.empty(int(offsets[-1]), np.uint32)
    _fill(texts.data, texts.offsets, fold, longest, limit, offsets, 64 - bits, buckets)
    return offsets, buckets


def counts_matrix(offsets: Offsets, buckets: Buckets, *, bits: int) -> sp.csr_array:
    """Return how often each bucket occurs in each text: [texts, 2^bits], float64."""
    shape = (len(offsets) - 1, 1 << bits)
    counts = sp.csr_array((np.ones(len(buckets)), buckets.astype(np.int64), offsets), shape=shape)
    counts.sum_duplicates()
    return counts


@njit(cache=True, nogil=True)
def _count(data: Bytes, places: Offsets, fold: FoldTable, longest: int, limit: int, counts: Offsets) -> None:
    prefixes = np.empty(longest_words(places) + 1, np.uint64)
    for text in range(len(places) - 1):
        words = min(prefixes_of(data, places[text], places[text + 1], fold, prefixes), limit)
        for size in range(1, longest + 1):
            counts[text + 1] += max(words - size + 1, 0)


@njit(cache=True, nogil=True)
def _fill(
    data: Bytes,
    places: Offsets,
    fold: FoldTable,
    longest: int,
    limit: int,
    offsets: Offsets,
    shift: int,
    buckets: Buckets,
) -> None:
    prefixes = np.empty(longest_words(places) + 1, np.uint64)
    powers = np.empty(longest + 1, np.uint64)
    for size in range(longest + 1):
        powers[size] = power_of_base(size)
    for text in range(len(places) - 1):
        words = min(prefixes_of(data, places[text], places[text + 1], fold, prefixes), limit)
        at = offsets[text]
        for size in range(1, longest + 1):
            for first in range(words - size + 1):
                # The length is hashed too, so that a word and a pair do not systematically share a hash.
                value = run_hash(prefixes, first, size, powers[size]) + uint64(size) * uint64(0x9E3779B97F4A7C15)
                buckets[at] = value >> uint64(shift)
                at += 1


@njit(cache=True, nogil=True)
def logistic_epoch(
    offsets: Offsets,
    buckets: Buckets,
    labels: NDArray[np.float32],
    order: Offsets,
    weights: NDArray[np.float32],
    squares: NDArray[np.float32],
    rate: float,
) -> None:
    """Run one epoch of AdaGrad on the logistic loss, one text at a time in `order`. The last weight is the bias.

    The features of a text with n buckets have the value 1/√n. Changes `weights` and `squares`, the sums of
    squared gradients, both [2^bits + 1].
    """
    bias = len(weights) - 1
    for place in range(len(order)):
        text = order[place]
        first, last = offsets[text], offsets[text + 1]
        if first == last:
            continue
        value = np.float32(1.0 / np.sqrt(last - first))
        total = weights[bias]
        for at in range(first, last):
            total += weights[buckets[at]] * value
        error = np.float32(1.0 / (1.0 + np.exp(-total)) - labels[text])
        slope = error * value
        for at in range(first, last):
            bucket = buckets[at]
            squares[bucket] += slope * slope
            weights[bucket] -= rate * slope / np.sqrt(squares[bucket] + np.float32(1e-8))
        squares[bias] += error * error
        weights[bias] -= rate * error / np.sqrt(squares[bias] + np.float32(1e-8))


@njit(cache=True, nogil=True)
def logistic_scores(
    offsets: Offsets, buckets: Buckets, weights: NDArray[np.float32], scores: NDArray[np.float64]
) -> None:
    """Write the probability of the positive label of each text to `scores` [texts]."""
    bias = len(weights) - 1
    for text in range(len(offsets) - 1):
        first, last = offsets[text], offsets[text + 1]
        total = 0.0
        for at in range(first, last):
            total += weights[buckets[at]]
        total = total / np.sqrt(max(last - first, 1)) + weights[bias]
        scores[text] = 1.0 / (1.0 + np.exp(-total))
