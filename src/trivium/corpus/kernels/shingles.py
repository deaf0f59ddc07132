"""Texts as sets of shingles (runs of consecutive words): the sets themselves, their signatures, their overlap."""

from typing import NamedTuple

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from trivium.corpus.kernels.cache import njit
from trivium.corpus.kernels.texts import Bytes, FoldTable, Offsets, Texts, fold_table
from trivium.corpus.kernels.words import (
    BASE,
    Hashes,
    longest_words,
    mix,
    never_zero,
    power_of_base,
    prefixes_of,
    run_hash,
    with_room,
)

Signatures = NDArray[np.uint32]
Multipliers = NDArray[np.uint32]
Pairs = NDArray[np.int64]

NO_SHINGLES = 0  # the band key of a text without words: it is like no other


class ShingleSets(NamedTuple):
    """Set `i` is hashes[offsets[i] : offsets[i + 1]], sorted, each hash once."""

    hashes: Hashes
    offsets: Offsets


def shingle_sets(texts: Texts, *, size: int) -> ShingleSets:
    """The set of each text: hashes of every `size` consecutive words; of the whole text if it has fewer."""
    room = int(texts.offsets[-1] - texts.offsets[0]) // 2 + texts.num_texts
    hashes, offsets = np.empty(room, np.uint64), np.zeros(texts.num_texts + 1, np.int64)
    _shingle_lists(texts.data, texts.offsets, fold_table(), size, hashes, offsets)
    for text in range(texts.num_texts):
        hashes[offsets[text] : offsets[text + 1]].sort()
    distinct = np.zeros_like(offsets)
    _close_ranks(hashes, offsets, distinct)
    return ShingleSets(hashes[: distinct[-1]].copy(), distinct)


def signatures(texts: Texts, *, size: int, multipliers: Multipliers) -> Signatures:
    """The smallest value of each hash function over each text's shingles, shape [texts, functions].

    Function k takes a shingle's 64 bits as two halves x and y to x * multipliers[0, k] + y * multipliers[1, k]
    modulo 2^32. `multipliers`: odd, shape [2, functions], a multiple of 4 functions. A text without words has
    the largest value everywhere.
    """
    smallest = np.empty((texts.num_texts, multipliers.shape[1]), np.uint32)
    _signatures(texts.data, texts.offsets, fold_table(), size, multipliers, smallest)
    return smallest


def band_keys(smallest: Signatures, *, bands: int, rows: int) -> Hashes:
    """One key per band, shape [bands, texts]: equal keys in a band make two texts a candidate pair."""
    keys = np.empty((bands, len(smallest)), np.uint64)
    _band_keys(smallest, rows, keys)
    return keys


def pairs_in_band(keys: Hashes, *, chain: int) -> Pairs:
    """Pairs (earlier, later) of texts with equal keys, shape [pairs, 2], in a fixed order.

    In a bucket each text is paired with the first `chain` ones and the one before it, so that a page copied
    ten thousand times costs pairs in proportion, not fifty million; groups up to `chain` + 1 are complete.
    """
    order = np.argsort(keys, kind="stable")
    return np.asarray(_pairs_in_band(keys, order, chain))


def jaccard_of_pairs(left: ShingleSets, right: ShingleSets, pairs: Pairs) -> NDArray[np.float64]:
    """Shared over all shingles of each pair (set on the left, set on the right); 0 when both are empty."""
    found = np.empty(len(pairs), np.float64)
    _jaccard_of_pairs(left.hashes, left.offsets, right.hashes, right.offsets, pairs, found)
    return found


@njit(cache=True, nogil=True)
def _shingles_of(data: Bytes, start: int, end: int, fold: FoldTable, size: int, prefixes: Hashes, out: Hashes) -> int:
    words = prefixes_of(data, start, end, fold, prefixes)
    if words == 0:
        return 0
    size = min(size, words)
    power = power_of_base(size)
    for first in range(words - size + 1):
        out[first] = run_hash(prefixes, first, size, power)
    return words - size + 1


@njit(cache=True, nogil=True)
def _shingle_lists(data: Bytes, places: Offsets, fold: FoldTable, size: int, hashes: Hashes, offsets: Offsets) -> None:
    prefixes = np.empty(longest_words(places) + 1, np.uint64)
    for text in range(len(places) - 1):
        rest = hashes[offsets[text] :]
        count = _shingles_of(data, places[text], places[text + 1], fold, size, prefixes, rest)
        offsets[text + 1] = offsets[text] + count


@njit(cache=True, nogil=True)
def _close_ranks(hashes: Hashes, offsets: Offsets, distinct: Offsets) -> None:
    """Keep the first of equal neighbours in each sorted list, and move the lists together, in place."""
    end = 0
    for text in range(len(offsets) - 1):
        for i in range(offsets[text], offsets[text + 1]):
            if i == offsets[text] or hashes[i] != hashes[i - 1]:
                hashes[end] = hashes[i]
                end += 1
        distinct[text + 1] = end


@njit(cache=True, nogil=True)
def _signatures(
    data: Bytes, places: Offsets, fold: FoldTable, size: int, multipliers: Multipliers, smallest: Signatures
) -> None:
    room = longest_words(places)
    prefixes, found = np.empty(room + 1, np.uint64), np.empty(room, np.uint64)
    low, high = np.empty(room, np.uint32), np.empty(room, np.uint32)
    for text in range(len(places) - 1):
        count = _shingles_of(data, places[text], places[text + 1], fold, size, prefixes, found)
        for i in range(count):
            low[i] = uint32(found[i])
            high[i] = uint32(found[i] >> uint64(32))
        _smallest_values(low, high, count, multipliers, smallest[text])


@njit(cache=True, nogil=True)
def _smallest_values(low: Signatures, high: Signatures, count: int, multipliers: Multipliers, out: Signatures) -> None:
    # four functions at a time, so that a shingle is loaded once for four; the compiler turns it into vectors
    for k in range(0, len(out), 4):
        a0, a1, a2, a3 = (multipliers[0, k], multipliers[0, k + 1], multipliers[0, k + 2], multipliers[0, k + 3])
        b0, b1, b2, b3 = (multipliers[1, k], multipliers[1, k + 1], multipliers[1, k + 2], multipliers[1, k + 3])
        s0 = s1 = s2 = s3 = uint32(0xFFFFFFFF)
        for i in range(count):
            x, y = low[i], high[i]
            s0 = min(s0, uint32(x * a0 + y * b0))
            s1 = min(s1, uint32(x * a1 + y * b1))
            s2 = min(s2, uint32(x * a2 + y * b2))
            s3 = min(s3, uint32(x * a3 + y * b3))
        out[k], out[k + 1], out[k + 2], out[k + 3] = s0, s1, s2, s3


@njit(cache=True, nogil=True)
def _band_keys(smallest: Signatures, rows: int, keys: Hashes) -> None:
    for text in range(len(smallest)):
        empty = True
        for value in smallest[text]:
            empty = empty and value == uint32(0xFFFFFFFF)
        for band in range(len(keys)):
            key = uint64(band + 1)
            for row in range(band * rows, (band + 1) * rows):
                key = mix(key * BASE + uint64(smallest[text, row]))
            keys[band, text] = uint64(NO_SHINGLES) if empty else never_zero(key)


@njit(cache=True, nogil=True)
def _pairs_in_band(keys: Hashes, order: Pairs, chain: int) -> Pairs:
    pairs = np.empty((1024, 2), np.int64)
    count = begin = 0
    for place in range(len(order)):
        if keys[order[place]] != keys[order[begin]]:
            begin = place
        if keys[order[place]] == uint64(NO_SHINGLES):
            continue
        if count + chain + 1 > len(pairs):
            pairs = with_room(pairs, 2 * len(pairs) + chain)
        last = min(place, begin + chain)
        for earlier in range(begin, last):
            pairs[count, 0], pairs[count, 1] = order[earlier], order[place]
            count += 1
        if place > begin + chain:
            pairs[count, 0], pairs[count, 1] = order[place - 1], order[place]
            count += 1
    return pairs[:count]


@njit(cache=True, nogil=True)
def _jaccard_of_pairs(
    left: Hashes, left_offsets: Offsets, right: Hashes, right_offsets: Offsets, pairs: Pairs, found: NDArray[np.float64]
) -> None:
    for pair in range(len(pairs)):
        a, a_end = left_offsets[pairs[pair, 0]], left_offsets[pairs[pair, 0] + 1]
        b, b_end = right_offsets[pairs[pair, 1]], right_offsets[pairs[pair, 1] + 1]
        total = a_end - a + b_end - b
        shared = 0
        while a < a_end and b < b_end:
            if left[a] == right[b]:
                shared += 1
                a += 1
                b += 1
            elif left[a] < right[b]:
                a += 1
            else:
                b += 1
        found[pair] = shared / (total - shared) if total > 0 else 0.0
