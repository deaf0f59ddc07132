"""Blocks of text of a page, in order, and the ranges of blocks inside elements with marks.

A block is what a browser would show as lines of its own: text between the starts and ends of block elements, or
between two line breaks in a row. Its text has single blanks, a line end for each line break, and its entities as
they were written.
"""

import numpy as np
from numba import uint8

from trivium.corpus.kernels.cache import njit
from trivium.corpus.kernels.html_tags import (
    BEGIN,
    BLOCK,
    END,
    INLINE,
    LINK,
    MARKS,
    NUMBER,
    TAG,
    UNSEEN,
    VOID,
    Table,
    is_blank,
)
from trivium.corpus.kernels.texts import Bytes, FoldTable
from trivium.corpus.kernels.words import code_point

# Columns of a block: where its text begins and ends, its characters, those of them in links, the number of its
# innermost block element, whether it ends as a sentence does, its blanks, how many block elements it is inside, and
# the least such number since the block before: of elements that hold both.
START, STOP, SIZE, LINKED, ELEMENT, SENTENCE, BLANKS, DEPTH, SHARED = range(9)
# Columns of a range: its first block, the block after its last, marks of its element, the element's number.
FIRST, LAST, SAYS, OF = range(4)
_MAX_DEPTH_ELEMENTS = 512  # elements in each other, as in browsers; deeper ones are read as if they were not there

_A, _BR, _P, _LI, _PRE, _HR = (NUMBER[name] for name in ("a", "br", "p", "li", "pre", "hr"))
_DD, _DT = (NUMBER[name] for name in ("dd", "dt"))
_TD, _TH, _TR = (NUMBER[name] for name in ("td", "th", "tr"))
_BODY, _HTML, _HEAD = (NUMBER[name] for name in ("body", "html", "head"))

_SENTENCE_ENDS: FoldTable = np.array(list(map(ord, ".!?:…。！？।۔؟")), np.uint32)
_AFTER_SENTENCE_ENDS: FoldTable = np.array(list(map(ord, "\"')]”’»」』）")), np.uint32)

# Columns of an element that is open: its number, its range, whether it is a link.
_NUMBER, _RANGE, _IS_LINK = 0, 1, 2
# The state of the scan: blocks so far, bytes written, depth, ranges, unseen elements open, links open, blank due,
# line breaks in a row, block elements open, and their least number since the last block.
_BLOCKS, _WRITTEN, _DEPTH, _RANGES, _UNSEEN, _LINKS, _BLANK, _BREAKS, _LEVEL, _LEAST = range(10)


@njit(cache=True, nogil=True)
def _ends_sentence(text: Bytes, start: int, stop: int) -> bool:
    """Whether text[start:stop] ends with a stop, apart from quotation marks and brackets after it."""
    at = stop - 1
    while at > start:
        begin = at
        if text[at] == 59:  # the semicolon of an entity: a quotation mark, or the ellipsis
            begin -= 1
            while begin > start and at - begin < 8 and text[begin] != 38:
                begin -= 1
            if text[begin] != 38:
                return False
            if text[begin + 1] == 104:  # &hellip;
                return True
        else:
            while begin > start and text[begin] & 0xC0 == 0x80:
                begin -= 1
            point, _ = code_point(text, begin)
            if _is_among(point, _SENTENCE_ENDS):
                return True
            if not _is_among(point, _AFTER_SENTENCE_ENDS):
                return False
        at = begin - 1
    return False


@njit(cache=True, nogil=True)
def _is_among(point: int, signs: FoldTable) -> bool:
    among = False
    for sign in signs:
        among = among or sign == point
    return among


@njit(cache=True, nogil=True, inline="always")
def _blank_length(page: Bytes, at: int, end: int) -> int:
    """Return the length in bytes of the white space or non-breaking space at `at`, or 0."""
    byte = page[at]
    if is_blank(byte):
        return 1
    if byte == 0xC2 and at + 1 < end and page[at + 1] == 0xA0:
        return 2
    if byte == 38 and at + 5 < end and page[at + 1] == 110 and page[at + 2] == 98 and page[at + 5] == 59:  # &nbsp;
        return 6
    if byte == 38 and at + 5 < end and page[at + 1] == 35 and page[at + 2] == 49 and page[at + 3] == 54:  # &#160;
        return 6 if page[at + 4] == 48 and page[at + 5] == 59 else 0
    return 0


@njit(cache=True, nogil=True)
def _close_block(text: Bytes, blocks: Table, state: Table, element: int) -> None:
    """End the block that is being written, unless it is empty."""
    number = state[_BLOCKS]
    start = blocks[number, START]
    stop = state[_WRITTEN]
    while stop > start and (text[stop - 1] == 10 or text[stop - 1] == 32):
        stop -= 1
    if stop > start:
        blocks[number, STOP], blocks[number, ELEMENT] = stop, element
        blocks[number, SENTENCE] = _ends_sentence(text, start, stop)
        blocks[number, DEPTH], blocks[number, SHARED] = state[_LEVEL], state[_LEAST]
        state[_LEAST] = state[_LEVEL]
        number += 1
        state[_BLOCKS] = number
    blocks[number, START] = stop
    blocks[number, SIZE] = blocks[number, LINKED] = blocks[number, BLANKS] = 0
    state[_WRITTEN], state[_BLANK], state[_BREAKS] = stop, 0, 0


@njit(cache=True, nogil=True)
def _write(page: Bytes, span: tuple[int, int], text: Bytes, blocks: Table, state: Table, verbatim: bool) -> None:
    """Add a run of text to the block that is being written."""
    number, written = state[_BLOCKS], state[_WRITTEN]
    start, blank, size = blocks[number, START], state[_BLANK], 0
    blanks = 0
    skipped = span[0]
    for at in range(span[0], span[1]):
        byte = page[at]
        if at < skipped:
            continue
        if not verbatim:
            length = _blank_length(page, at, span[1])
            if length:
                blank, skipped = 1, at + length
                continue
        if blank and written > start and text[written - 1] != 10:
            text[written] = 32
            written += 1
            size += 1
            blanks += 1
        blank = 0
        text[written] = byte
        written += 1
        size += byte & uint8(0xC0) != uint8(0x80)
        state[_BREAKS] = 0
    blocks[number, SIZE] += size
    blocks[number, BLANKS] += blanks
    if state[_LINKS] > 0:
        blocks[number, LINKED] += size
    state[_WRITTEN], state[_BLANK] = written, blank


@njit(cache=True, nogil=True)
def _block_element(stack: Table, state: Table, kinds: Bytes) -> int:
    """The number of the innermost block element that is open, or 0."""
    for place in range(state[_DEPTH] - 1, -1, -1):
        if kinds[stack[place, _NUMBER]] == BLOCK:
            return int(stack[place, _NUMBER])
    return 0


@njit(cache=True, nogil=True)
def _pop_to(stack: Table, depth: int, state: Table, kinds: Bytes, ranges: Table) -> None:
    """Close the elements that are open beyond `depth`."""
    while state[_DEPTH] > depth:
        state[_DEPTH] -= 1
        element, place = stack[state[_DEPTH], _NUMBER], stack[state[_DEPTH], _RANGE]
        if place >= 0:
            ranges[place, LAST] = state[_BLOCKS]
        state[_UNSEEN] -= kinds[element] == UNSEEN
        state[_LEVEL] -= kinds[element] == BLOCK
        state[_LINKS] -= stack[state[_DEPTH], _IS_LINK]
    state[_LEAST] = min(state[_LEAST], state[_LEVEL])


@njit(cache=True, nogil=True)
def _close_place(stack: Table, state: Table, kinds: Bytes, element: int) -> int:
    """The depth at which what a closing tag names was opened, or -1; an inline element ends within its block."""
    for place in range(state[_DEPTH] - 1, -1, -1):
        if stack[place, _NUMBER] == element:
            return place
        if kinds[element] == INLINE and kinds[stack[place, _NUMBER]] == BLOCK:
            return -1
    return -1


@njit(cache=True, nogil=True)
def _end_link(stack: Table, state: Table) -> None:
    """The innermost link ends at its closing tag, even where elements within it are still open."""
    for place in range(state[_DEPTH] - 1, -1, -1):
        if stack[place, _IS_LINK]:
            stack[place, _IS_LINK] = 0
            state[_LINKS] -= 1
            return


@njit(cache=True, nogil=True)
def _implied_end(stack: Table, state: Table, kinds: Bytes, element: int) -> int:
    """The depth to which the start of `element` closes what is open: a paragraph, item, cell or row before it."""
    for place in range(state[_DEPTH] - 1, -1, -1):
        over = stack[place, _NUMBER]
        if over == _P and kinds[element] == BLOCK:
            return place
        if over == element and element in (_LI, _TR, _A):
            return place
        if element in (_DD, _DT) and over in (_DD, _DT):
            return place
        if element in (_TD, _TH, _TR) and over in (_TD, _TH):
            return _implied_row(stack, place, element)
        if kinds[over] == BLOCK:
            return int(state[_DEPTH])
    return int(state[_DEPTH])


@njit(cache=True, nogil=True)
def _implied_row(stack: Table, place: int, element: int) -> int:
    """A new cell closes the cell at `place`; a new row closes its row too."""
    return place - 1 if element == _TR and place > 0 and stack[place - 1, _NUMBER] == _TR else place


@njit(cache=True, nogil=True)
def _open(stack: Table, state: Table, kinds: Bytes, ranges: Table, element: int, marks: int) -> None:
    """Open an element, and a range where it says something or is a block."""
    state[_UNSEEN] += kinds[element] == UNSEEN
    state[_LEVEL] += kinds[element] == BLOCK
    is_link = element == _A and marks & LINK != 0
    state[_LINKS] += is_link
    place = -1
    if marks & ~LINK:
        place = state[_RANGES]
        ranges[place, FIRST] = ranges[place, LAST] = state[_BLOCKS]
        ranges[place, SAYS], ranges[place, OF] = marks, element
        state[_RANGES] += 1
    depth = state[_DEPTH]
    stack[depth, _NUMBER], stack[depth, _RANGE] = element, place
    stack[depth, _IS_LINK] = is_link
    state[_DEPTH] += 1


@njit(cache=True, nogil=True)
def _break(text: Bytes, blocks: Table, stack: Table, state: Table, kinds: Bytes) -> None:
    """A line break: the second in a row ends the block."""
    state[_BREAKS] += 1
    if state[_BREAKS] > 1:
        _close_block(text, blocks, state, _block_element(stack, state, kinds))
    elif state[_WRITTEN] > blocks[state[_BLOCKS], START]:
        text[state[_WRITTEN]] = 10
        state[_WRITTEN] += 1
    state[_BLANK] = 0


@njit(cache=True, nogil=True)
def blocks_of(page: Bytes, tags: Table, kinds: Bytes, says: Table) -> tuple[Bytes, Table, Table]:
    """The text of all blocks, the blocks, and the ranges of the elements that have marks of their own or in `says`."""
    text = np.empty(len(page) + 1, np.uint8)
    blocks = np.zeros((len(tags) + 2, 9), np.int32)
    ranges = np.empty((len(tags) + 1, 4), np.int32)
    stack = np.empty((_MAX_DEPTH_ELEMENTS + 1, 3), np.int32)
    state = np.zeros(10, np.int32)
    read = 0
    for number in range(len(tags) + 1):
        begin = tags[number, BEGIN] if number < len(tags) else len(page)
        if begin > read and state[_UNSEEN] == 0:
            verbatim = state[_DEPTH] > 0 and _block_element(stack, state, kinds) == _PRE
            _write(page, (read, begin), text, blocks, state, verbatim)
        if number == len(tags):
            break
        read, element = tags[number, END], tags[number, TAG]
        kind = kinds[abs(element)]
        if element == _BR:
            _break(text, blocks, stack, state, kinds)
            continue
        if element == 0 or (kind == VOID and element != _HR):
            continue
        if kind == BLOCK or element == _HR:
            _close_block(text, blocks, state, _block_element(stack, state, kinds))
        if element < 0:
            if element == -_A:
                _end_link(stack, state)
            place = _close_place(stack, state, kinds, -element)
            if place >= 0:
                _pop_to(stack, place, state, kinds, ranges)
        elif element != _HR and element not in (_BODY, _HTML, _HEAD) and state[_DEPTH] < _MAX_DEPTH_ELEMENTS:
            _pop_to(stack, _implied_end(stack, state, kinds, element), state, kinds, ranges)
            _open(stack, state, kinds, ranges, element, tags[number, MARKS] | says[element])
    _close_block(text, blocks, state, _block_element(stack, state, kinds))
    _pop_to(stack, 0, state, kinds, ranges)
    return text, blocks[: state[_BLOCKS]], ranges[: state[_RANGES]]
