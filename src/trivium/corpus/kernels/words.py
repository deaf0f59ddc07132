"""Words → hashes: one pass over the bytes; every run of words is then hashed from two prefixes.

With w the hashes of the words, prefix[i + 1] = prefix[i] * BASE + w[i] modulo 2^64, and the hash of the n words
from i on is mix(prefix[i + n] - prefix[i] * BASE^n): the same for the same words wherever they stand.
"""

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from trivium.corpus.kernels.cache import njit
from trivium.corpus.kernels.texts import ALONE, LETTER_BITS, MARK, Bytes, FoldTable, Offsets, Texts, fold_table

Hashes = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
Counts = np.ndarray[tuple[int], np.dtype[np.int64]]

BASE = uint64(0x9E3779B97F4A7C15)
_SECOND_BASE = uint64(0xD1342543DE82EF95)
_START, _PRIME = uint64(0xCBF29CE484222325), uint64(0x100000001B3)
_ALONE, _MARK, _LETTER_BITS = uint32(ALONE), uint32(MARK), uint32(LETTER_BITS)
# the multipliers of splitmix64's last step
_MIX_1, _MIX_2 = uint64(0xBF58476D1CE4E5B9), uint64(0x94D049BB133111EB)


@njit(cache=True, nogil=True, inline="always")
def mix(value: np.uint64) -> np.uint64:
    """A bijection of 64 bits that spreads every bit (the last step of splitmix64)."""
    value = (value ^ (value >> uint64(30))) * _MIX_1
    value = (value ^ (value >> uint64(27))) * _MIX_2
    return value ^ (value >> uint64(31))


@njit(cache=True, nogil=True)
def with_room(rows: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """Copy the rows to a larger array: [rows, columns] → [room, columns], where the added rows are uninitialised."""
    larger = np.empty((room, rows.shape[1]), np.int64)
    # Element by element, because numba takes six seconds to compile the assignment of a slice.
    for row in range(len(rows)):
        for column in range(rows.shape[1]):
            larger[row, column] = rows[row, column]
    return larger


@njit(cache=True, nogil=True, inline="always")
def never_zero(value: np.uint64) -> np.uint64:
    """The value, or 1 in place of 0, which marks what is absent."""
    return value if value != uint64(0) else uint64(1)


@njit(cache=True, nogil=True, inline="always")
def code_point(data: Bytes, at: int) -> tuple[int, int]:
    """The code point that begins at this byte, and where the next one begins."""
    first = uint32(data[at])
    if first < uint32(0x80):
        return first, at + 1
    second = uint32(data[at + 1]) & uint32(0x3F)
    if first < uint32(0xE0):
        return ((first & uint32(0x1F)) << uint32(6)) | second, at + 2
    third = uint32(data[at + 2]) & uint32(0x3F)
    if first < uint32(0xF0):
        return ((first & uint32(0x0F)) << uint32(12)) | (second << uint32(6)) | third, at + 3
    fourth = uint32(data[at + 3]) & uint32(0x3F)
    high = ((first & uint32(0x07)) << uint32(18)) | (second << uint32(12))
    return high | (third << uint32(6)) | fourth, at + 4


@njit(cache=True, nogil=True, inline="always")
def ends_word(letter: np.uint32, base: np.uint32) -> bool:
    """Whether the word ends before this entry of the fold table. base: what `base_of` gave for its last letter."""
    if letter == uint32(0) or base == uint32(0):
        return bool(base != uint32(0))
    either = letter | base
    return bool(either >= _MARK and either & _ALONE != uint32(0) and letter & _MARK == uint32(0))


@njit(cache=True, nogil=True, inline="always")
def base_of(letter: np.uint32, base: np.uint32) -> np.uint32:
    """The last letter of a word that is no mark on another, after one more entry; 0 outside words."""
    return base if base != uint32(0) and letter & _MARK != uint32(0) else letter


@njit(cache=True, nogil=True)
def prefixes_of(data: Bytes, start: int, end: int, fold: FoldTable, prefixes: Hashes) -> int:
    """Fill prefixes[0 … words] for the text in data[start:end]; returns the number of words."""
    words = 0
    word, base = _START, uint32(0)
    prefixes[0] = uint64(0)
    at = start
    while at < end:
        point, at = code_point(data, at)
        letter = fold[point]
        if ends_word(letter, base):
            prefixes[words + 1] = prefixes[words] * BASE + mix(word)
            words += 1
            word, base = _START, uint32(0)
        if letter != uint32(0):
            word = (word ^ uint64(letter & _LETTER_BITS)) * _PRIME
            base = base_of(letter, base)
    if base != uint32(0):
        prefixes[words + 1] = prefixes[words] * BASE + mix(word)
        words += 1
    return words


@njit(cache=True, nogil=True, inline="always")
def run_hash(prefixes: Hashes, first: int, words: int, power: np.uint64) -> np.uint64:
    """The hash of `words` words from `first` on; `power` is BASE to their number."""
    return mix(prefixes[first + words] - prefixes[first] * power)


@njit(cache=True, nogil=True)
def power_of_base(exponent: int) -> np.uint64:
    """BASE to a power, modulo 2^64."""
    power = uint64(1)
    for _ in range(exponent):
        power *= BASE
    return power


@njit(cache=True, nogil=True)
def longest_words(offsets: Offsets) -> int:
    """More words than any of the texts can hold: a word and the gap after it take two bytes, and a letter that is a
    word of its own three."""
    longest = 0
    for text in range(len(offsets) - 1):
        longest = max(longest, offsets[text + 1] - offsets[text])
    return longest // 2 + 1


def text_keys(texts: Texts) -> Hashes:
    """128 bits a text, shape [texts, 2], equal for texts with the same words in the same order.

    Texts without words have equal keys if they are equal.
    """
    return keys_and_words(texts)[0]


def keys_and_words(texts: Texts) -> tuple[Hashes, Counts]:
    """The `text_keys` of texts, and how many words each has."""
    keys = np.empty((texts.num_texts, 2), np.uint64)
    counts = np.empty(texts.num_texts, np.int64)
    _text_keys(texts.data, texts.offsets, fold_table(), keys, counts)
    return keys, counts


@njit(cache=True, nogil=True)
def _text_keys(data: Bytes, offsets: Offsets, fold: FoldTable, keys: Hashes, counts: Counts) -> None:
    prefixes = np.empty(longest_words(offsets) + 1, np.uint64)
    for text in range(len(offsets) - 1):
        words = prefixes_of(data, offsets[text], offsets[text + 1], fold, prefixes)
        counts[text] = words
        first, second = prefixes[words], uint64(words)
        for word in range(words):
            second = second * _SECOND_BASE + mix(prefixes[word + 1])
        if words == 0:
            for at in range(offsets[text], offsets[text + 1]):
                first = first * BASE + mix(uint64(data[at]) + uint64(1))
                second = second * _SECOND_BASE + mix(first)
        keys[text, 0] = mix(first)
        keys[text, 1] = mix(second)
