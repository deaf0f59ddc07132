"""An index of word n-grams, and the scan for them: where in a column of texts does any of the keys stand."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from trivium.corpus.kernels.cache import njit
from trivium.corpus.kernels.rows import with_room
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
)

_FILTER_BITS_PER_KEY = 16
_SLOTS_PER_KEY = 4
_WHOLE = 1 << 31  # words: more than any text has


class Ngrams(NamedTuple):
    """Runs of words of some texts, the first of equal ones: their hashes, and where they stand.

    begins: the hash of the first words of each, as many as the shortest has. texts: the number of its text;
    firsts, sizes: its first word and how many it has.
    """

    hashes: Hashes
    begins: Hashes
    texts: NDArray[np.int64]
    firsts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    begin: int  # words that `begins` are of

    def only(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> "Ngrams":
        """Some of them, by number or by a bit for each."""
        return Ngrams(
            self.hashes[chosen],
            self.begins[chosen],
            self.texts[chosen],
            self.firsts[chosen],
            self.sizes[chosen],
            self.begin,
        )


class NgramIndex(NamedTuple):
    """Hashes of keys in an open table (0: free), the key in each slot, and what is asked first.

    begins: three bits of one of its words for the hash of each key's first words. Few places of a text begin like a
    key, and only there are the lengths looked up one by one.
    """

    slots: Hashes
    keys: NDArray[np.int64]
    begins: Hashes
    begin: int  # words that are asked for first
    sizes: NDArray[np.int64]  # in words, the largest first


class Found(NamedTuple):
    """Every place where a key stands, by text, position, and falling length.

    texts, keys: their numbers; starts, ends: bytes from the beginning of the text.
    """

    texts: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    keys: NDArray[np.int64]

    def only(self, chosen: NDArray[np.bool_]) -> "Found":
        """Those with a bit."""
        return Found(*(column[chosen] for column in self))

    def longest(self) -> "Found":
        """The first, which is the longest, of those that begin at one place."""
        begins = np.ones(len(self.texts), np.bool_)
        begins[1:] = (np.diff(self.texts) != 0) | (np.diff(self.starts) != 0)
        return self.only(begins)


def ngrams_of(texts: Texts, *, longest: int = _WHOLE, shortest: int = 1) -> Ngrams:
    """Every run of `longest` words of each text; a text of fewer is one as a whole, of fewer than `shortest` none."""
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
    """An index of n-grams, or of different texts of one word or more as n-grams."""
    ngrams = keys if isinstance(keys, Ngrams) else ngrams_of(texts_of(keys))
    slots = np.zeros(_power_of_two(_SLOTS_PER_KEY * len(ngrams.hashes)), np.uint64)
    owners = np.full(len(slots), -1, np.int64)
    _fill(ngrams.hashes, slots, owners)
    begins = np.zeros(_power_of_two(_FILTER_BITS_PER_KEY * len(ngrams.hashes)) // 64, np.uint64)
    _set_bits(ngrams.begins, begins)
    sizes = np.unique(ngrams.sizes)[::-1].copy()
    return NgramIndex(slots, owners, begins, ngrams.begin, sizes)


def find_ngrams(texts: Texts, index: NgramIndex) -> Found:
    """Every key in every text, found by its 64-bit hash: who needs certainty compares the words."""
    fold = fold_table()
    rows = _scan(texts.data, texts.offsets, fold, index)
    places = np.zeros((len(rows), 2), np.int64)
    _places(texts.data, texts.offsets, fold, rows, places)
    return Found(rows[:, 0].copy(), places[:, 0].copy(), places[:, 1].copy(), rows[:, 3].copy())


def are_there(texts: Texts, found: Found, passages: Texts, ngrams: Ngrams) -> NDArray[np.bool_]:
    """For each find whether the key's words really stand there: hashes may be equal by chance."""
    really = np.zeros(len(found.texts), np.bool_)
    _are_there(texts.data, texts.offsets, fold_table(), found, passages, ngrams, really)
    return really


def in_characters(texts: Texts, found: Found) -> Found:
    """The same places with `starts` and `ends` in characters instead of bytes."""
    places = np.empty((len(found.texts), 2), np.int64)
    _in_characters(texts.data, texts.offsets, found, places)
    return found._replace(starts=places[:, 0], ends=places[:, 1])


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
    """Text, first word and size of every run, and the hashes of it and of its first `least` words, never 0."""
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
    found = np.empty((1024, 4), np.int64)  # text, first word, last word, key
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
def _places(data: Bytes, offsets: Offsets, fold: FoldTable, rows: NDArray[np.int64], places: NDArray[np.int64]) -> None:
    """Where the first word of each row begins and the last one ends; only texts with a find are read again."""
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
        places[row, 0], places[row, 1] = starts[rows[row, 1]], ends[rows[row, 2]]


@njit(cache=True, nogil=True)
def _are_there(
    data: Bytes,
    offsets: Offsets,
    fold: FoldTable,
    found: Found,
    passages: Texts,
    ngrams: Ngrams,
    really: NDArray[np.bool_],
) -> None:
    others, passage, passage_end = passages.data, -1, 0
    starts = np.empty(longest_words(passages.offsets), np.int64)  # of the words of `passage`
    for row in range(len(found.texts)):
        begin, which = offsets[found.texts[row]], found.keys[row]
        if ngrams.texts[which] != passage:
            passage = ngrams.texts[which]
            passage_end = passages.offsets[passage + 1]
            _word_starts(others, passages.offsets[passage], passage_end, fold, starts)
        at, end = begin + found.starts[row], begin + found.ends[row]
        other, words = starts[ngrams.firsts[which]], ngrams.sizes[which]
        really[row] = _same_words(data, at, end, others, other, passage_end, fold, words)


@njit(cache=True, nogil=True)
def _same_words(
    data: Bytes, at: int, end: int, others: Bytes, other: int, other_end: int, fold: FoldTable, words: int
) -> bool:
    """Whether data[at:end], from one word's first letter to another's last, begins others[other:] with its words."""
    base = uint32(0)  # the same in both, as long as their letters are
    while True:
        letter, after = _letter_at(data, at, end, fold)
        wanted, other_after = _letter_at(others, other, other_end, fold)
        ended = ends_word(letter, base)
        if ended != ends_word(wanted, base) or (not ended and letter != wanted):
            return False
        if ended:
            words -= 1
            if words == 0:
                return True
            at, other = _word_start(data, at, end, fold), _word_start(others, other, other_end, fold)
            base = uint32(0)
        else:
            base = base_of(letter, base)
            at, other = after, other_after


@njit(cache=True, nogil=True, inline="always")
def _letter_at(data: Bytes, at: int, end: int, fold: FoldTable) -> tuple[np.uint32, int]:
    """The entry of the fold table for the character there, and where the next begins; 0 at the end."""
    if at >= end:
        return uint32(0), at
    point, after = code_point(data, at)
    return fold[point], after


@njit(cache=True, nogil=True)
def _word_starts(data: Bytes, at: int, end: int, fold: FoldTable, starts: NDArray[np.int64]) -> None:
    words, base = 0, uint32(0)
    while at < end:
        point, after = code_point(data, at)
        letter = fold[point]
        if letter != uint32(0) and (base == uint32(0) or ends_word(letter, base)):
            starts[words] = at
            words, base = words + 1, uint32(0)
        base, at = base_of(letter, base), after


@njit(cache=True, nogil=True)
def _word_start(data: Bytes, at: int, end: int, fold: FoldTable) -> int:
    while at < end:
        point, after = code_point(data, at)
        if fold[point] != uint32(0):
            break
        at = after
    return at


@njit(cache=True, nogil=True)
def _in_characters(data: Bytes, offsets: Offsets, found: Found, places: NDArray[np.int64]) -> None:
    text, at, characters = -1, 0, 0
    for row in range(len(found.texts)):
        begin = offsets[found.texts[row]]
        if found.texts[row] != text:
            text, at, characters = found.texts[row], begin, 0
        characters += _characters(data, at, begin + found.starts[row])
        at = begin + found.starts[row]
        places[row, 0] = characters
        places[row, 1] = characters + _characters(data, at, begin + found.ends[row])


@njit(cache=True, nogil=True, inline="always")
def _characters(data: Bytes, start: int, end: int) -> int:
    """How many characters begin in these bytes of UTF-8."""
    count = 0
    for at in range(start, end):
        count += int(data[at] & 0xC0 != 0x80)
    return count
