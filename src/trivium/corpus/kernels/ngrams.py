"""An index of word n-grams, and the scan for them: where in a column of texts does any of the keys stand."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit, uint32, uint64
from numpy.typing import NDArray

from trivium.corpus.kernels.texts import Bytes, FoldTable, Offsets, Texts, fold_table, texts_of
from trivium.corpus.kernels.words import (
    Hashes,
    code_point,
    longest_words,
    never_zero,
    power_of_base,
    prefixes_of,
    run_hash,
)

_FILTER_BITS_PER_KEY = 16
_SLOTS_PER_KEY = 4


class NgramIndex(NamedTuple):
    """Hashes of keys in an open table (0: free), the key in each slot, and what is asked first.

    begins: a bit for the hash of each key's first words, as many as the shortest key has. Few places of a text
    begin like a key, and only there are the lengths looked up one by one.
    """

    slots: Hashes
    keys: NDArray[np.int64]
    begins: Hashes
    sizes: NDArray[np.int64]  # in words, the largest first


class Found(NamedTuple):
    """Every place where a key stands, by text, position, and falling length.

    texts, keys: their numbers; starts, ends: bytes from the beginning of the text.
    """

    texts: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    keys: NDArray[np.int64]


def ngram_index(keys: Sequence[str]) -> NgramIndex:
    """An index of keys: different texts of one word or more."""
    texts, fold = texts_of(keys), fold_table()
    hashes, sizes = np.empty(len(keys), np.uint64), np.empty(len(keys), np.int64)
    _hash_keys(texts.data, texts.offsets, fold, 0, hashes, sizes)
    slots = np.zeros(_power_of_two(_SLOTS_PER_KEY * len(keys)), np.uint64)
    owners = np.full(len(slots), -1, np.int64)
    _fill(hashes, slots, owners)
    _hash_keys(texts.data, texts.offsets, fold, int(sizes.min(initial=2**31)), hashes, sizes.copy())
    begins = np.zeros(_power_of_two(_FILTER_BITS_PER_KEY * len(keys)) // 64, np.uint64)
    _set_bits(hashes, begins)
    return NgramIndex(slots, owners, begins, np.unique(sizes)[::-1].copy())


def find_ngrams(texts: Texts, index: NgramIndex) -> Found:
    """Every key in every text, found by its 64-bit hash: who needs certainty compares the words."""
    fold = fold_table()
    rows = _scan(texts.data, texts.offsets, fold, index.slots, index.keys, index.begins, index.sizes)
    places = np.zeros((len(rows), 2), np.int64)
    _places(texts.data, texts.offsets, fold, rows, places)
    return Found(rows[:, 0].copy(), places[:, 0].copy(), places[:, 1].copy(), rows[:, 3].copy())


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 64).bit_length()


@njit(cache=True, nogil=True)
def _hash_keys(
    data: Bytes, offsets: Offsets, fold: FoldTable, first: int, hashes: Hashes, sizes: NDArray[np.int64]
) -> None:
    """The hash of each key's `first` words (0: of all), never 0, and how many words it has."""
    prefixes = np.empty(longest_words(offsets) + 1, np.uint64)
    for key in range(len(offsets) - 1):
        words = prefixes_of(data, offsets[key], offsets[key + 1], fold, prefixes)
        taken = words if first == 0 else first
        hashes[key] = never_zero(run_hash(prefixes, 0, taken, power_of_base(taken)))
        sizes[key] = words


@njit(cache=True, nogil=True)
def _fill(hashes: Hashes, slots: Hashes, owners: NDArray[np.int64]) -> None:
    for key in range(len(hashes)):
        slot = (hashes[key] >> uint64(24)) & uint64(len(slots) - 1)
        while slots[slot] != uint64(0):
            slot = (slot + uint64(1)) & uint64(len(slots) - 1)
        slots[slot] = hashes[key]
        owners[slot] = key


@njit(cache=True, nogil=True)
def _set_bits(hashes: Hashes, bits: Hashes) -> None:
    for value in hashes:
        bit = value & uint64(64 * len(bits) - 1)
        bits[bit >> uint64(6)] |= uint64(1) << (bit & uint64(63))


@njit(cache=True, nogil=True)
def _scan(
    data: Bytes,
    offsets: Offsets,
    fold: FoldTable,
    slots: Hashes,
    owners: NDArray[np.int64],
    begins: Hashes,
    sizes: NDArray[np.int64],
) -> NDArray[np.int64]:
    powers = np.array([power_of_base(size) for size in sizes], np.uint64)
    prefixes = np.empty(longest_words(offsets) + 1, np.uint64)
    found = np.empty((1024, 4), np.int64)  # text, first word, last word, key
    count = 0
    if len(sizes) == 0:
        return found[:0]
    shortest, power = sizes[-1], powers[-1]
    for text in range(len(offsets) - 1):
        words = prefixes_of(data, offsets[text], offsets[text + 1], fold, prefixes)
        for first in range(words - shortest + 1):
            begin = never_zero(run_hash(prefixes, first, shortest, power))
            bit = begin & uint64(64 * len(begins) - 1)
            if (begins[bit >> uint64(6)] >> (bit & uint64(63))) & uint64(1) == uint64(0):
                continue
            for which in range(len(sizes)):
                if first + sizes[which] > words:
                    continue
                value = never_zero(run_hash(prefixes, first, sizes[which], powers[which]))
                key = _look_up(value, slots, owners)
                if key < 0:
                    continue
                if count == len(found):
                    larger = np.empty((2 * count, 4), np.int64)
                    larger[:count] = found
                    found = larger
                found[count, 0], found[count, 1] = text, first
                found[count, 2], found[count, 3] = first + sizes[which] - 1, key
                count += 1
    return found[:count]


@njit(cache=True, nogil=True)
def _look_up(value: np.uint64, slots: Hashes, owners: NDArray[np.int64]) -> int:
    slot = (value >> uint64(24)) & uint64(len(slots) - 1)
    while slots[slot] != uint64(0):
        if slots[slot] == value:
            return int(owners[slot])
        slot = (slot + uint64(1)) & uint64(len(slots) - 1)
    return -1


@njit(cache=True, nogil=True)
def _places(
    data: Bytes, offsets: Offsets, fold: FoldTable, rows: NDArray[np.int64], places: NDArray[np.int64]
) -> None:
    """Where the first word of each row begins and the last one ends; only texts with a find are read again."""
    room = longest_words(offsets)
    starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
    current = -1
    for row in range(len(rows)):
        if rows[row, 0] != current:
            current = rows[row, 0]
            begin, words, inside = offsets[current], 0, False
            at = begin
            while at < offsets[current + 1]:
                point, after = code_point(data, at)
                wordy = fold[point] != uint32(0)
                if wordy and not inside:
                    starts[words] = at - begin
                if inside and not wordy:
                    ends[words] = at - begin
                    words += 1
                inside = wordy
                at = after
            if inside:
                ends[words] = at - begin
        places[row, 0], places[row, 1] = starts[rows[row, 1]], ends[rows[row, 2]]
