"""Repetition inside one text: lines, paragraphs, runs of words. Equal hashes are always verified."""

from typing import NamedTuple

import numpy as np
from numba import int64, uint32, uint64
from numpy.typing import NDArray

from trivium.corpus.kernels.cache import njit
from trivium.corpus.kernels.characters import BLANK, Classes, character_classes
from trivium.corpus.kernels.texts import Bytes, Offsets, Texts
from trivium.corpus.kernels.words import Hashes, code_point, mix

Numbers = NDArray[np.int64]

# columns of `parts` for lines and, PARAGRAPHS further on, for paragraphs
PARTS, AGAIN, PART_CHARACTERS, AGAIN_CHARACTERS = range(4)
PARAGRAPHS = 4

_LINE_END = uint32(0x0A)
_LAST_OF_LINE, _LAST_OF_PARAGRAPH = 1, 2
_SHORTEST_TOP, _SHORTEST_REPEATED = 2, 5
_START, _PRIME = uint64(0xCBF29CE484222325), uint64(0x100000001B3)


class Words(NamedTuple):
    """The words of one text: bytes [starts, ends), a hash, what they are the last of, and where they stand.

    places: characters before each word; sizes: characters of all words before each, one more than there are words.
    """

    starts: Numbers
    ends: Numbers
    hashes: Hashes
    last_of: NDArray[np.uint8]
    places: Numbers
    sizes: Numbers


def repeats(texts: Texts, *, tops: int, repeated: int) -> tuple[Numbers, Numbers]:
    """Return the repetition in each text: (parts [texts, 8], runs [texts, 1 + tops + repeated]).

    parts: lines, those that occurred before, and the characters of both; the same for paragraphs. runs: characters
    of all words; of the occurrences of the run of 2, 3, … words that covers most, for `tops` lengths; of words in a
    run of 5, 6, … words that occurred before, for `repeated` lengths. Words, lines and paragraphs end at blanks, line
    ends and pairs of line ends; blanks around them do not count, nor do empty ones.
    """
    parts = np.zeros((texts.num_texts, 2 * PARAGRAPHS), np.int64)
    runs = np.zeros((texts.num_texts, 1 + tops + repeated), np.int64)
    _repeats(texts.data, texts.offsets, character_classes(), tops, parts, runs)
    return parts, runs


@njit(cache=True, nogil=True)
def _repeats(data: Bytes, offsets: Offsets, classes: Classes, tops: int, parts: Numbers, runs: Numbers) -> None:
    room = 1
    for text in range(len(offsets) - 1):
        room = max(room, _most_words(data, offsets[text], offsets[text + 1]) + 1)
    words = Words(
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.uint64),
        np.empty(room, np.uint8),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
    )
    for text in range(len(offsets) - 1):
        count = _split(data, offsets[text], offsets[text + 1], classes, words)
        _parts(data, words, count, _LAST_OF_LINE, parts[text, :PARAGRAPHS])
        _parts(data, words, count, _LAST_OF_PARAGRAPH, parts[text, PARAGRAPHS:])
        _runs(_first_equals(data, words, count), words.sizes, tops, runs[text])


@njit(cache=True, nogil=True)
def _most_words(data: Bytes, start: int, end: int) -> int:
    """Return an upper bound of the number of words: one more than bytes that may be part of a blank."""
    count = 1
    for at in range(start, end):
        count += data[at] <= 0x20 or data[at] >= 0x80
    return min(count, (end - start + 1) // 2 + 1)


@njit(cache=True, nogil=True)
def _split(data: Bytes, start: int, end: int, classes: Classes, words: Words) -> int:
    """Find the words of data[start:end]. Return their number."""
    count, characters, inside = 0, 0, False
    pair = False  # whether the character before is a line end that is not yet half of a pair
    value = _START
    words.sizes[0] = 0
    at = start
    while at < end:
        before = at
        point, at = code_point(data, at)
        if classes[point] & BLANK:
            if inside:
                inside = False
                words.ends[count] = before
                words.hashes[count] = mix(value)
                words.sizes[count + 1] = words.sizes[count] + characters - words.places[count]
                words.last_of[count] = 0
                count += 1
            if point == _LINE_END:
                if count > 0:
                    words.last_of[count - 1] |= _LAST_OF_LINE | (_LAST_OF_PARAGRAPH if pair else 0)
                pair = not pair
            else:
                pair = False
        else:
            if not inside:
                inside, pair, value = True, False, _START
                words.starts[count], words.places[count] = before, characters
            value = (value ^ uint64(point)) * _PRIME
        characters += 1
    if inside:
        words.ends[count] = end
        words.hashes[count] = mix(value)
        words.sizes[count + 1] = words.sizes[count] + characters - words.places[count]
        count += 1
    if count > 0:
        words.last_of[count - 1] = _LAST_OF_LINE | _LAST_OF_PARAGRAPH
    return count


@njit(cache=True, nogil=True)
def _are_equal(data: Bytes, a: int, a_end: int, b: int, b_end: int) -> bool:
    if a_end - a != b_end - b:
        return False
    size = a_end - a
    step = 0
    while step < size and data[a + step] == data[b + step]:
        step += 1
    return step == size


@njit(cache=True, nogil=True)
def _slots(entries: int) -> int:
    """Return a power of two of at least twice the number of entries."""
    slots = 16
    while slots < 2 * entries:
        slots *= 2
    return slots


@njit(cache=True, nogil=True)
def _parts(data: Bytes, words: Words, count: int, last_of: int, row: Numbers) -> None:
    """Count lines or paragraphs, and those that occurred before, into `row`."""
    every = 0
    for word in range(count):
        every += words.last_of[word] & last_of != 0
    mask = _slots(every) - 1
    firsts, lasts = np.full(mask + 1, -1, np.int64), np.empty(mask + 1, np.int64)
    keys = np.empty(mask + 1, np.uint64)
    first, value = 0, _START
    for last in range(count):
        value = mix(value + words.hashes[last])
        if words.last_of[last] & last_of == 0:
            continue
        characters = words.places[last] - words.places[first] + words.sizes[last + 1] - words.sizes[last]
        row[PARTS] += 1
        row[PART_CHARACTERS] += characters
        slot = int64(value & uint64(mask))
        while firsts[slot] >= 0:
            if keys[slot] == value and _are_equal(
                data, words.starts[first], words.ends[last], words.starts[firsts[slot]], words.ends[lasts[slot]]
            ):
                row[AGAIN] += 1
                row[AGAIN_CHARACTERS] += characters
                break
            slot = (slot + 1) & mask
        else:
            firsts[slot], lasts[slot], keys[slot] = first, last, value
        first, value = last + 1, _START


@njit(cache=True, nogil=True)
def _first_equals(data: Bytes, words: Words, count: int) -> Numbers:
    """Return, for each word, the number of the first word that is equal to it."""
    found = np.empty(count, np.int64)
    mask = _slots(count) - 1
    slots = np.full(mask + 1, -1, np.int32)
    for word in range(count):
        value = words.hashes[word]
        slot = int64(value & uint64(mask))
        found[word] = word
        while slots[slot] >= 0:
            other = slots[slot]
            if words.hashes[other] == value and _are_equal(
                data, words.starts[word], words.ends[word], words.starts[other], words.ends[other]
            ):
                found[word] = other
                break
            slot = (slot + 1) & mask
        if found[word] == word:
            slots[slot] = word
    return found


@njit(cache=True, nogil=True)
def _runs(codes: Numbers, sizes: Numbers, tops: int, row: Numbers) -> None:
    """Count characters in repeated runs of words into `row`. A run can only repeat where its beginning does."""
    count = len(codes)
    row[0] = sizes[count]
    repeated = len(row) - 1 - tops
    longest = max(_SHORTEST_TOP + tops, _SHORTEST_REPEATED + repeated if repeated > 0 else 0) - 1
    often = np.zeros(count, np.int64)
    for word in range(count):
        often[codes[word]] += 1
    names = codes.copy()  # for the run that begins at each place: where it occurs first
    active = np.empty(count, np.int64)
    left = 0
    for place in range(count):
        if often[codes[place]] > 1:
            active[left] = place
            left += 1
    tally = often.copy()
    for size in range(2, longest + 1):
        left = _lengthened(codes, often, size, active, left, names, tally)
        if left == 0:
            break
        if size < _SHORTEST_TOP + tops:
            for at in range(left):
                place = active[at]
                covered = tally[names[place]] * (sizes[place + size] - sizes[place])
                row[1 + size - _SHORTEST_TOP] = max(row[1 + size - _SHORTEST_TOP], covered)
        if 0 <= size - _SHORTEST_REPEATED < repeated:
            reach = 0
            for at in range(left):
                place = active[at]
                if names[place] != place:
                    begin = max(place, reach)
                    reach = place + size
                    row[1 + tops + size - _SHORTEST_REPEATED] += sizes[reach] - sizes[begin]


@njit(cache=True, nogil=True)
def _lengthened(
    codes: Numbers, often: Numbers, size: int, active: Numbers, left: int, names: Numbers, tally: Numbers
) -> int:
    """Lengthen the runs at the active places to `size` words. Those that repeat remain active; return their number."""
    whole = 0
    for at in range(left):
        place = active[at]
        if place + size <= len(codes) and often[codes[place + size - 1]] > 1:
            active[whole] = place
            whole += 1
            tally[place] = 0
    mask = _slots(whole) - 1
    firsts, keys = np.full(mask + 1, -1, np.int64), np.empty(mask + 1, np.uint64)
    for at in range(whole):
        place = active[at]
        # exact: which run of one word less, and which word after it
        key = (uint64(names[place]) << uint64(32)) | uint64(codes[place + size - 1])
        slot = int64(mix(key) & uint64(mask))
        while firsts[slot] >= 0 and keys[slot] != key:
            slot = (slot + 1) & mask
        if firsts[slot] < 0:
            firsts[slot], keys[slot] = place, key
        names[place] = firsts[slot]
        tally[firsts[slot]] += 1
    again = 0
    for at in range(whole):
        if tally[names[active[at]]] > 1:
            active[again] = active[at]
            again += 1
    return again
