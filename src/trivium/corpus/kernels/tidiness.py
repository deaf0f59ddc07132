"""Normalisation of blanks, line ends and control characters of one text, in one pass over its bytes."""

import numpy as np
from numba import uint8, uint32

from trivium.corpus.kernels.cache import njit
from trivium.corpus.kernels.texts import Bytes
from trivium.corpus.kernels.words import code_point

Kinds = np.ndarray[tuple[int], np.dtype[np.uint8]]
ODD, SIGN, MARK = 1, 2, 1  # MARK is of another table
_NOTHING, _BLANK, _LINE_END, _RETURN, _OTHER = range(5)
_TAB, _NEWLINE, _SPACE, _DELETE = uint8(0x09), uint8(0x0A), uint8(0x20), uint8(0x7F)


def plain_blanks(text: str) -> str:
    """`text` without control characters and soft hyphens, one blank for a run of blanks, one empty line at most, none
    around it.

    Indentation stays, a tab or several blanks before a line: code means something by it. Line ends of any kind become
    \\n, those of a page (form feed) and vertical tabs among them, which would join two words if they went. Control
    characters are those of `clean.tidy`, a terminal's colours whole; next line (U+0085) stays.
    """
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    out = np.empty(len(data), np.uint8)
    return out[: _plain_blanks(data, out)].tobytes().decode("utf-8", "surrogatepass").strip()


def beyond_ascii(text: str, kinds: Kinds, near: int) -> tuple[bool, list[tuple[int, int]]]:
    """Whether a character is ODD; if none is, the runs of characters beyond ASCII or SIGNs, two at least or a SIGN.

    kinds: of each code point, shape [0x110000]; none of ASCII is ODD. Runs are [start, end); those that are at most
    `near` characters apart are one.
    """
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    runs = np.empty((len(data) // 2 + 1, 2), np.int64)  # the shortest run and what parts it from the next
    count = _beyond_ascii(data, kinds, near, runs)
    return count < 0, list(map(tuple, runs[: max(count, 0)].tolist()))


def longest_runs(text: str, kinds: Kinds) -> tuple[int, int]:
    """The length of the longest run of characters that are MARKs, and of the longest run of one other character.

    kinds: of each code point, shape [0x110000]. Blanks and line ends of ASCII belong to no run.
    """
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    marks, equal = _longest_runs(data, kinds)
    return int(marks), int(equal)


@njit(cache=True, nogil=True)
def _longest_runs(data: Bytes, kinds: Kinds) -> tuple[int, int]:
    most_marks = most_equal = marks = equal = at = 0
    before = uint32(0)
    while at < len(data):
        if data[at] < uint8(0x80):
            point = uint32(data[at])
            at += 1
        else:
            point, at = code_point(data, at)
        if kinds[point] == MARK:
            marks += 1
            most_marks = max(most_marks, marks)
            equal = 0
        else:
            marks = 0
            equal = 0 if point <= uint32(0x20) else equal + 1 if point == before else 1
            most_equal = max(most_equal, equal)
        before = point
    return most_marks, most_equal


@njit(cache=True, nogil=True)
def _beyond_ascii(data: Bytes, kinds: Kinds, near: int, runs: np.ndarray) -> int:
    """Fill `runs`. Return their number, or -1 at an odd character."""
    count = run = at = place = 0
    sign = False
    while at < len(data):
        if data[at] < uint8(0x80) and kinds[data[at]] != SIGN:
            if run > 1 or sign:
                count = _add_run(runs, count, place - run, place, near)
            run, sign = 0, False
            at += 1
        else:
            point, at = code_point(data, at)
            if kinds[point] == ODD:
                return -1
            sign = sign or kinds[point] == SIGN
            run += 1
        place += 1
    return _add_run(runs, count, place - run, place, near) if run > 1 or sign else count


@njit(cache=True, nogil=True, inline="always")
def _add_run(runs: np.ndarray, count: int, start: int, end: int, near: int) -> int:
    if count > 0 and start - runs[count - 1, 1] <= near:
        runs[count - 1, 1] = end
        return count
    runs[count, 0], runs[count, 1] = start, end
    return count + 1


@njit(cache=True, nogil=True)
def _plain_blanks(data: Bytes, out: Bytes) -> int:
    """Fill `out`. Return the number of bytes written."""
    end = at = line = 0  # bytes written, read, and read where the line begins
    before = False  # whether blanks stand before the first line end of this gap
    line_ends, returned = 0, False
    while at < len(data):
        kind, length = _kind(data, at)
        if kind == _OTHER:
            if before or line_ends > 0:
                end = _close(out, end, line_ends, before)
                end = _indent(data, line, at, out, end, line_ends) if line_ends > 0 else end
                before, line_ends = False, 0
            for place in range(at, at + length):
                out[end] = data[place]
                end += 1
        elif kind == _BLANK:
            before = before or line_ends == 0
        elif kind != _NOTHING:
            line_ends += 0 if returned and kind == _LINE_END else 1
            line = at + length
        returned = kind == _RETURN
        at += length
    return _close(out, end, line_ends, before)


@njit(cache=True, nogil=True, inline="always")
def _kind(data: Bytes, at: int) -> tuple[int, int]:
    """Return the kind of the character that begins at this byte, and its number of bytes."""
    if _SPACE < data[at] < _DELETE:
        return _OTHER, 1
    point, after = code_point(data, at)
    length = after - at
    if point in (0x20, 0x09, 0xA0):
        return _BLANK, length
    if point in (0x0A, 0x0B, 0x0C):
        return _LINE_END, length
    if point == 0x0D:
        return _RETURN, length
    if point == 0x1B:
        return _NOTHING, _escape_sequence(data, at)
    is_control = point < 0x20 or (0x7F <= point < 0xA0 and point != 0x85)
    is_format = 0x206A <= point <= 0x206F or point == 0xFEFF or 0xFFF9 <= point <= 0xFFFC
    # A soft hyphen (U+00AD) marks where a line may break inside a word.
    return _NOTHING if is_control or is_format or point == 0xAD else _OTHER, length


@njit(cache=True, nogil=True)
def _escape_sequence(data: Bytes, at: int) -> int:
    """Return the length of the terminal sequence at an escape (`ESC [ 31 m`, the form that ftfy removes), or 1."""
    place = at + 1
    if place >= len(data) or data[place] != uint8(0x5B):
        return 1
    place += 1
    while place < len(data) and (uint8(0x30) <= data[place] <= uint8(0x39) or data[place] == uint8(0x3B)):
        place += 1
    if place < len(data) and uint8(0x61) <= (data[place] | uint8(0x20)) <= uint8(0x7A):
        return place + 1 - at
    return 1


@njit(cache=True, nogil=True, inline="always")
def _close(out: Bytes, end: int, line_ends: int, before: bool) -> int:
    """Write the normalised form of a gap: a blank, one line end, or an empty line."""
    if before and line_ends <= 1:
        out[end] = _SPACE
        end += 1
    for _ in range(min(line_ends, 2)):
        out[end] = _NEWLINE
        end += 1
    return end


@njit(cache=True, nogil=True)
def _indent(data: Bytes, at: int, stop: int, out: Bytes, end: int, line_ends: int) -> int:
    """Write the indentation of a line. A single blank after an empty line is dropped."""
    begin = end
    while at < stop:
        kind, length = _kind(data, at)
        if kind == _BLANK:
            out[end] = _TAB if data[at] == _TAB else _SPACE
            end += 1
        at += length
    single = end - begin == 1 and out[begin] == _SPACE
    return begin if single and line_ends > 1 else end
