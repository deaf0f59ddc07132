"""Counts of a text's characters, words and lines, and the lines that may be boilerplate, in one pass over the bytes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import uint8, uint32, uint64
from numpy.typing import NDArray

from trivium.corpus.kernels.cache import njit
from trivium.corpus.kernels.characters import BLANK, BULLET, DIGIT, LETTER, ODD, STOP, WORD, Classes, character_classes
from trivium.corpus.kernels.texts import Bytes, Offsets, Texts
from trivium.corpus.kernels.words import code_point, with_room

# columns of `counts`
(
    CHARACTERS,  # characters of the whole text
    WORDS,
    WORD_CHARACTERS,
    HASHES,  # number of # signs
    ELLIPSES,  # number of … and of two dots
    LINES,  # with anything in them
    BULLET_LINES,
    ELLIPSIS_LINES,
    LETTER_WORDS,  # with a letter
    COMMON,  # a bit for each of COMMON_WORDS, whatever its case, that stands between blanks and MARKS
    STOPPED_LINES,
    SHORT_LINES,
) = range(12)
_COLUMNS = 12
# further columns of one line
(_BEGIN, _STOP_AT, _LENGTH, _FIRST_BITS, _LAST_BITS, _ABOUT, _TRAILS_OFF, _COUNTER) = range(12, 20)
_FIELDS = 20

COMMON_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
MARKS = ".,;:!?()\"'"
# What a line with boilerplate holds, eight letters of it each: notices in a line of at most 60 words, calls to act,
# or the first four letters of menu words, in one of at most 10.
_NOTICES = (
    *("terms of", "terms an", "y policy", "e policy", "s cookie", "e cookie", "f cookie"),
    *("rights r", " javascr", "lorem ip"),
)
_CALLS = ("ead more", " in cart", " to cart", "subscrib", "share on", "share th", "ollow us", "k to top")
_MENUS = ("sign", "logi", "log ", "regi", "home", "menu", "sear", "skip")
NOTICE_WORDS, CALL_WORDS = 60, 10


def _numbers(phrases: Sequence[str]) -> NDArray[np.uint64]:
    """Return each phrase of up to eight letters as one number."""
    return np.array([int.from_bytes(phrase.encode(), "big") for phrase in phrases], np.uint64)


_COMMON_NUMBERS, _MENU_NUMBERS = _numbers(COMMON_WORDS), _numbers(_MENUS)
_MARK_BITS = uint64(sum(1 << ord(mark) for mark in MARKS))
_SLOT_BITS = 7
_SPREAD = uint64(0x9E3779B97F4A7C15)
_DOTS = 3  # dots at the end of a line that trails off
_COUNTER_LETTERS = 9  # letters of `followers`, the longest word after a number in a counter
_K, _SMALL_K = uint32(0x4B), uint32(0x6B)  # thousands
_HASH, _DOT, _ELLIPSIS, _LINE_END = uint32(0x23), uint32(0x2E), uint32(0x2026), uint32(0x0A)
_NOTICE, _CALL = 1, 2


class Lines(NamedTuple):
    """Lines without their blanks: bytes [starts, ends) of the data, the text each is of, and its words."""

    texts: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    words: NDArray[np.int64]


class Tables(NamedTuple):
    """Classes of characters; a hash table of phrases, each as one number, and the kind of each."""

    classes: Classes
    phrases: NDArray[np.uint64]
    kinds: NDArray[np.uint8]


def measures(texts: Texts, *, short: int, stops: int = STOP) -> tuple[NDArray[np.int64], Lines]:
    """Return counts of each text, [texts, 12], and every line that may be boilerplate.

    short: a line of fewer characters is short. stops: the bit of the characters that a stopped line ends in.
    """
    counts = np.zeros((texts.num_texts, _COLUMNS), np.int64)
    suspects = _measures(texts.data, texts.offsets, _tables(), short, stops, counts)
    return counts, Lines(*(suspects[:, column] for column in range(4)))


def _tables() -> Tables:
    values, kinds = np.zeros(1 << _SLOT_BITS, np.uint64), np.zeros(1 << _SLOT_BITS, np.uint8)
    for kind, phrases in ((_NOTICE, _NOTICES), (_CALL, _CALLS)):
        for value in map(int, _numbers(phrases)):
            slot = ((value * int(_SPREAD)) % 2**64) >> (64 - _SLOT_BITS)
            assert values[slot] == 0, f"two phrases fall into slot {slot}; choose another multiplier or more bits"
            values[slot], kinds[slot] = value, kind
    return Tables(character_classes(), values, kinds)


@njit(cache=True, nogil=True, inline="always")
def _lowered(letter: np.uint8) -> np.uint64:
    return uint64(letter) + uint64(32) if uint8(65) <= letter <= uint8(90) else uint64(letter)


@njit(cache=True, nogil=True, inline="always")
def _is_mark(letter: np.uint8) -> bool:
    """Return whether a byte is one of MARKS."""
    return bool(letter < uint8(64) and (_MARK_BITS >> uint64(letter)) & uint64(1) != uint64(0))


@njit(cache=True, nogil=True)
def _number_at(data: Bytes, start: int, end: int) -> np.uint64:
    """Return up to eight bytes in lower case as one number."""
    value = uint64(0)
    for at in range(start, end):
        value = (value << uint64(8)) | _lowered(data[at])
    return value


@njit(cache=True, nogil=True)
def _common_bit(data: Bytes, start: int, end: int) -> int:
    """Return the bit of the common word in data[start:end], ignoring marks around it, or 0."""
    while start < end and _is_mark(data[start]):
        start += 1
    while start < end and _is_mark(data[end - 1]):
        end -= 1
    if not 2 <= end - start <= 4:
        return 0
    value = _number_at(data, start, end)
    for place in range(len(_COMMON_NUMBERS)):
        if value == _COMMON_NUMBERS[place]:
            return 1 << place
    return 0


@njit(cache=True, nogil=True)
def _may_be_menu(data: Bytes, start: int, end: int) -> bool:
    if end - start < 4:
        return False
    value = _number_at(data, start, start + 4)
    found = False
    for menu in _MENU_NUMBERS:
        found = found or menu == value
    return found


@njit(cache=True, nogil=True)
def _measures(
    data: Bytes, offsets: Offsets, tables: Tables, short: int, stops: int, counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    suspects, found = np.empty((256, 4), np.int64), 0
    line = np.zeros(_FIELDS, np.int64)
    for text in range(len(offsets) - 1):
        at, end = offsets[text], offsets[text + 1]
        while at < end:
            at = _scan(data, at, end, tables, line)
            _add(line, short, stops, counts[text])
            if not _is_suspect(data, line):
                continue
            if found == len(suspects):
                suspects = with_room(suspects, 2 * found)
            suspects[found, 0], suspects[found, 1] = text, line[_BEGIN]
            suspects[found, 2], suspects[found, 3] = line[_STOP_AT], line[WORDS]
            found += 1
    return suspects[:found]


@njit(cache=True, nogil=True)
def _scan(data: Bytes, at: int, end: int, tables: Tables, line: NDArray[np.int64]) -> int:
    """Measure the line that begins at `at` into `line`. Return where the next one begins."""
    start = stop = at  # borders of the line without surrounding blanks
    first_bits, last_bits = uint8(0), uint8(0)
    last = last_dots = 0
    characters = first_place = last_place = 0
    words, word_start, letters, inside = 0, at, uint8(0), False
    word_characters = letter_words = hashes = ellipses = common = 0
    dots, seen, digit_first, others, about = 0, False, False, 0, uint8(0)
    window = uint64(0)
    while at < end:
        before = at
        point, at = code_point(data, at)
        characters += 1
        bits = tables.classes[point]
        if bits & BLANK:
            if inside:
                inside = False
                letter_words += letters != 0
                common |= _common_bit(data, word_start, before)
            if point == _LINE_END:
                break
            dots = 0
            window = (window << uint64(8)) | uint64(point & uint32(0xFF))
            continue
        if not inside:
            inside, word_start, letters = True, before, uint8(0)
            words += 1
            if words == 1:
                start, first_place, first_bits = before, characters, bits
        word_characters += 1
        letters |= bits & LETTER
        about |= bits & ODD
        if bits & WORD:
            if not seen:
                seen, digit_first = True, bits & DIGIT != 0
            others += bits & DIGIT == 0 and point != _K and point != _SMALL_K
            dots = 0
        else:
            dots = dots + 1 if point == _DOT else 0
            ellipses += point == _ELLIPSIS or (dots > 0 and dots % 2 == 0)
            hashes += point == _HASH
        last, last_bits, last_place, last_dots, stop = point, bits, characters, dots, at
        window = (window << uint64(8)) | _lowered(data[before]) if point < uint32(128) else uint64(0)
        slot = (window * _SPREAD) >> uint64(64 - _SLOT_BITS)
        if tables.phrases[slot] == window:
            about |= tables.kinds[slot]
    if inside:
        letter_words += letters != 0
        common |= _common_bit(data, word_start, stop)
    line[CHARACTERS], line[WORDS], line[WORD_CHARACTERS] = characters, words, word_characters
    line[HASHES], line[ELLIPSES], line[LETTER_WORDS], line[COMMON] = hashes, ellipses, letter_words, common
    line[_BEGIN], line[_STOP_AT], line[_LENGTH] = start, stop, last_place - first_place + 1
    line[_FIRST_BITS], line[_LAST_BITS], line[_ABOUT] = first_bits, last_bits, about
    line[_TRAILS_OFF] = last == _ELLIPSIS or last_dots >= _DOTS
    line[_COUNTER] = digit_first and others <= _COUNTER_LETTERS
    return at


@njit(cache=True, nogil=True)
def _add(line: NDArray[np.int64], short: int, stops: int, row: NDArray[np.int64]) -> None:
    """Add a line to the counts of its text."""
    row[CHARACTERS] += line[CHARACTERS]
    if line[WORDS] == 0:
        return
    row[WORDS] += line[WORDS]
    row[WORD_CHARACTERS] += line[WORD_CHARACTERS]
    row[HASHES] += line[HASHES]
    row[ELLIPSES] += line[ELLIPSES]
    row[LETTER_WORDS] += line[LETTER_WORDS]
    row[COMMON] |= line[COMMON]
    row[LINES] += 1
    row[BULLET_LINES] += line[_FIRST_BITS] & BULLET != 0
    row[ELLIPSIS_LINES] += line[_TRAILS_OFF]
    row[STOPPED_LINES] += line[_LAST_BITS] & stops != 0
    row[SHORT_LINES] += line[_LENGTH] < short


@njit(cache=True, nogil=True)
def _is_suspect(data: Bytes, line: NDArray[np.int64]) -> bool:
    """Return whether a line may be boilerplate."""
    if line[WORDS] == 0 or line[WORDS] > NOTICE_WORDS:
        return False
    if line[_ABOUT] & (_NOTICE | ODD):
        return True
    if line[WORDS] > CALL_WORDS:
        return False
    if line[_COUNTER] or line[_ABOUT] & _CALL:
        return True
    return bool(_may_be_menu(data, line[_BEGIN], line[_STOP_AT]))
