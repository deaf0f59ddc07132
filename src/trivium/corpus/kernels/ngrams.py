"""An index of word n-grams, and the search for them in a column of texts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from trivium.corpus.kernels.cache import njit
from trivium.corpus.kernels.texts import Bytes, FoldTable, Offsets, Texts, fold_table, texts_of
from trivium.corpus.kernels.words import (
    Hashes,
    base_of,
    code_point,
    ends_word,
    longest_words,
    never_zero,
    power_of_base,
    prefixes_of,
    run_hash,
    with_room,
)

_FILTER_BITS_PER_KEY = 16
_SLOTS_PER_KEY = 4
_WHOLE = 1 << 31  # number of words that no text has


class Ngrams(NamedTuple):
    """Distinct runs of words of some texts: their hashes, and the position of the first occurrence.

    begins: the hash of the first `begin` words of each, the length of the shortest run. texts: the number of its text.
    firsts, sizes: its first word and its number of words.
    """

    hashes: Hashes
    begins: Hashes
    texts: NDArray[np.int64]
    firsts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    begin: int  # words hashed in `begins`

    def only(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> "Ngrams":
        """Select some runs, by index or by mask."""
        texts, firsts, sizes = self.texts[chosen], self.firsts[chosen], self.sizes[chosen]
        return Ngrams(self.hashes[chosen], self.begins[chosen], texts, firsts, sizes, self.begin)


class NgramIndex(NamedTuple):
    """Hashes of keys in an open hash table (0: free), the key in each slot, and a filter that is queried first.

    begins: a Bloom filter of the hash of each key's first words. Few places of a text begin like a key, and only there
    are the lengths looked up one by one.
    """

    slots: Hashes
    keys: NDArray[np.int64]
    begins: Hashes
    begin: int  # words hashed in `begins`
    sizes: NDArray[np.int64]  # in words, the largest first


def ngrams_of(texts: Texts, *, longest: int = _WHOLE, shortest: int = 1) -> Ngrams:
    """Return every run of `longest` words of each text. A shorter text is one run if it has `shortest` words."""
    counts = np.zeros(texts.num_texts, np.int64)
    _count_words(texts.data, texts.offsets, fold_table(), counts)
    sizes = np.minimum(counts, longest)
    runs = np.where(counts >= shortest, counts - sizes + 1, 0)
    least = int(sizes[runs > 0].min(initial=longest))
    places = np.empty((int(runs.sum()), 3), np.int64)
    hashes = np.empty((len(places), 2), np.uint64)
    _hash_runs(texts.data, texts.offsets, fold_table(), sizes, runs, least, places, hashes)
    _, first = np.unique(hashes[:, 0], return_index=True)
    every = Ngrams(hashes[:, 0], hashes[:, 1], places[:, 0], places[:, 1], places[:, 2], least)
    return every.only(np.sort(first))


def ngram_index(keys: Ngrams | Sequence[str]) -> NgramIndex:
    """Return an index of n-grams, or of distinct texts of one word or more as n-grams."""
    ngrams = keys if isinstance(keys, Ngrams) else ngrams_of(texts_of(keys))
    slots = np.zeros(_power_of_two(_SLOTS_PER_KEY * len(ngrams.hashes)), np.uint64)
    owners = np.full(len(slots), -1, np.int64)
    _fill(ngrams.hashes, slots, owners)
    begins = np.zeros(_power_of_two(_FILTER_BITS_PER_KEY * len(ngrams.hashes)) // 64, np.uint64)
    _set_bits(ngrams.begins, begins)
    sizes = np.unique(ngrams.sizes)[::-1].copy()
    return NgramIndex(slots, owners, begins, ngrams.begin, sizes)


def find_ngrams(texts: Texts, index: NgramIndex) -> NDArray[np.int64]:
    """Return every occurrence of a key in a text: [matches, 4] with text, first byte, byte after its last, and key.

    They are sorted by text, first byte and falling length. Bytes are counted from the beginning of the text. Matches
    are found by a 64-bit hash, so a caller that needs certainty compares the words.
    """
    rows = _scan(texts.data, texts.offsets, fold_table(), index)
    _words_to_bytes(texts.data, texts.offsets, fold_table(), rows)
    return np.asarray(rows)


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 64).bit_length()


@njit(cache=True, nogil=True)
def _count_words(data: Bytes, offsets: Offsets, fold: FoldTable, counts: NDArray[np.int64]) -> None:
    prefixes = np.empty(longest_words(offsets) + 1, np.uint64)
    for text in range(len(offsets) - 1):
        counts[text] = prefixes_of(data, offsets[text], offsets[text + 1], fold, prefixes)


@njit(cache=True, nogil=True)
def _hash_runs(
    data: Bytes,
    offsets: Offsets,
    fold: FoldTable,
    sizes: NDArray[np.int64],
    runs: NDArray[np.int64],
    least: int,
    places: NDArray[np.int64],
    hashes: Hashes,
) -> None:
    """Fill text, first word and size of every run, and the hashes of it and of its first `least` words, never 0."""
    prefixes = np.empty(longest_words(offsets) + 1, np.uint64)
    begin, at = power_of_base(least), 0
    for text in range(len(offsets) - 1):
        if runs[text] == 0:
            continue
        prefixes_of(data, offsets[text], offsets[text + 1], fold, prefixes)
        power = power_of_base(sizes[text])
        for first in range(runs[text]):
            places[at, 0], places[at, 1], places[at, 2] = text, first, sizes[text]
            hashes[at, 0] = never_zero(run_hash(prefixes, first, sizes[text], power))
            hashes[at, 1] = run_hash(prefixes, first, least, begin)
            at += 1


@njit(cache=True, nogil=True)
def _fill(hashes: Hashes, slots: Hashes, owners: NDArray[np.int64]) -> None:
    for key in range(len(hashes)):
        slot = (hashes[key] >> uint64(24)) & uint64(len(slots) - 1)
        while slots[slot] != uint64(0):
            slot = (slot + uint64(1)) & uint64(len(slots) - 1)
        slots[slot] = hashes[key]
        owners[slot] = key


@njit(cache=True, nogil=True)
def _set_bits(hashes: Hashes, words: Hashes) -> None:
    for value in hashes:
        words[_word_of(value, len(words))] |= _bits_of(value)


@njit(cache=True, nogil=True, inline="always")
def _word_of(value: np.uint64, words: int) -> np.uint64:
    return (value >> uint64(18)) & uint64(words - 1)


@njit(cache=True, nogil=True, inline="always")
def _bits_of(value: np.uint64) -> np.uint64:
    first, second = value & uint64(63), (value >> uint64(6)) & uint64(63)
    third = (value >> uint64(12)) & uint64(63)
    return (uint64(1) << first) | (uint64(1) << second) | (uint64(1) << third)


@njit(cache=True, nogil=True)
def _scan(data: Bytes, offsets: Offsets, fold: FoldTable, index: NgramIndex) -> NDArray[np.int64]:
    slots, owners, begins, shortest, sizes = index
    powers = np.array([power_of_base(size) for size in sizes], np.uint64)
    prefixes = np.empty(longest_words(offsets) + 1, np.uint64)
    found = np.empty((1024, 4), np.int64)
    count = 0
    if len(sizes) == 0:
        return found[:0]
    power = power_of_base(shortest)
    for text in range(len(offsets) - 1):
        words = prefixes_of(data, offsets[text], offsets[text + 1], fold, prefixes)
        for first in range(words - shortest + 1):
            begin = run_hash(prefixes, first, shortest, power)
            bits = _bits_of(begin)
            if begins[_word_of(begin, len(begins))] & bits != bits:
                continue
            for which in range(len(sizes)):
                if first + sizes[which] > words:
                    continue
                value = never_zero(run_hash(prefixes, first, sizes[which], powers[which]))
                key = _look_up(value, slots, owners)
                if key < 0:
                    continue
                if count == len(found):
                    found = with_room(found, 2 * count)
                found[count, 0], found[count, 1] = text, first
                found[count, 2], found[count, 3] = sizes[which], key
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
def _words_to_bytes(data: Bytes, offsets: Offsets, fold: FoldTable, rows: NDArray[np.int64]) -> None:
    """Replace first word and number of words in each row by first byte and end. Reads only texts with a match."""
    room = longest_words(offsets)
    starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
    current = -1
    for row in range(len(rows)):
        if rows[row, 0] != current:
            current = rows[row, 0]
            begin, words, base = offsets[current], 0, uint32(0)
            at = begin
            while at < offsets[current + 1]:
                point, after = code_point(data, at)
                letter = fold[point]
                if ends_word(letter, base):
                    ends[words] = at - begin
                    words, base = words + 1, uint32(0)
                if base == uint32(0) and letter != uint32(0):
                    starts[words] = at - begin
                base = base_of(letter, base)
                at = after
            if base != uint32(0):
                ends[words] = at - begin
        first, last = rows[row, 1], rows[row, 1] + rows[row, 2] - 1
        rows[row, 1], rows[row, 2] = starts[first], ends[last]
