"""Tags of HTML in UTF-8: their positions, names, and marks from their class, id, role and style attributes.

Tags, comments and elements without text (scripts, styles) are found in one pass by the tokenizer's rules of the HTML
standard as far as text needs them; what is none of these is text.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from numba import uint8, uint64

from trivium.corpus.kernels.cache import njit
from trivium.corpus.kernels.texts import Bytes

Table = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
Names = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]

# Columns of a tag: its first byte, the byte after it, its number (negative when it closes, 0 for what is no tag),
# and its marks: bits for what its attributes say, or its name.
BEGIN, END, TAG, MARKS = range(4)
# It leads elsewhere; it stands around an article (a footer); it stands within one and is none of it (a caption,
# something hidden); it is quoted; it is an article; it is a `section`.
LINK, FRAME, INSERT, QUOTE, BODY, SECTION = 1, 2, 4, 8, 16, 32

# How an element's content is read: within a line, as lines of its own, absent, unread, or unseen.
INLINE, BLOCK, VOID, RAW, UNSEEN = range(5)
ELEMENTS: Mapping[int, str] = {
    INLINE: "a",
    BLOCK: "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hgroup html legend li main menu nav ol p pre "
    "section summary table tbody td tfoot th thead tr ul",
    VOID: "area base br col embed hr img input link meta param source track wbr",
    RAW: "iframe noembed noframes noscript script style textarea title xmp",
    UNSEEN: "audio button canvas datalist map object select svg template video",
}


def packed(name: str) -> int:
    """A tag's name as the scanner sees it: its first eight letters, and its length beyond that."""
    value = 0
    for letter in name.encode()[:8]:
        value = value << 8 | letter
    return value ^ max(len(name) - 8, 0)


_NUMBERED = sorted((packed(name), name, kind) for kind, names in ELEMENTS.items() for name in names.split())
NAMES: Names = np.array([value for value, _, _ in _NUMBERED], np.uint64)
# by number; 0 is every element that is not listed, read within a line
KINDS = np.array([INLINE] + [kind for _, _, kind in _NUMBERED], np.uint8)
NUMBER: Mapping[str, int] = {name: place + 1 for place, (_, name, _) in enumerate(_NUMBERED)}


_SCRIPT = NUMBER["script"]


class Words:
    """Words that attributes are searched for, as arrays: letters, first letter of each word, its mark, by initial."""

    def __init__(self, marks: Mapping[int, Iterable[str]]) -> None:
        words = sorted((word.encode(), mark) for mark, group in marks.items() for word in group)
        lengths = [len(word) for word, _ in words]
        self.letters: Bytes = np.frombuffer(b"".join(word for word, _ in words), np.uint8)
        self.starts: Table = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self.marks: Table = np.array([mark for _, mark in words], np.int32)
        initials = [word[0] for word, _ in words]
        self.first: Table = np.searchsorted(initials, np.arange(257)).astype(np.int32)

    def arrays(self) -> tuple[Bytes, Table, Table, Table]:
        return self.letters, self.starts, self.marks, self.first


@njit(cache=True, nogil=True, inline="always")
def _lower(byte: np.uint8) -> np.uint8:
    return byte | uint8(0x20) if uint8(65) <= byte <= uint8(90) else byte


@njit(cache=True, nogil=True, inline="always")
def _is_letter(byte: np.uint8) -> bool:
    return bool(uint8(97) <= (byte | uint8(0x20)) <= uint8(122))


@njit(cache=True, nogil=True, inline="always")
def is_blank(byte: np.uint8) -> bool:
    return bool(byte == 32 or uint8(9) <= byte <= uint8(13))


@njit(cache=True, nogil=True)
def _number(page: Bytes, start: int, end: int, names: Names) -> int:
    """The number of the element whose name is page[start:end], or 0."""
    value = uint64(0)
    for at in range(start, min(end, start + 8)):
        value = value << uint64(8) | uint64(_lower(page[at]))
    value ^= uint64(max(end - start - 8, 0))
    place = int(np.searchsorted(names, value))
    return place + 1 if place < len(names) and names[place] == value else 0


@njit(cache=True, nogil=True)
def _said(page: Bytes, start: int, end: int, words: tuple[Bytes, Table, Table, Table]) -> int:
    """The marks of the words in an attribute's value; a word begins where a letter follows none, or a capital."""
    letters, starts, marks, first = words
    found = 0
    for at in range(start, end):
        letter = page[at]
        if not _is_letter(letter):
            continue
        if at > start and _is_letter(page[at - 1]) and not (letter < uint8(97) <= page[at - 1]):
            continue
        initial = _lower(letter)
        for word in range(first[initial], first[initial + 1]):
            length = starts[word + 1] - starts[word]
            whole = letters[starts[word + 1] - 1] == uint8(32)  # a blank at its end: the word ends there too
            length -= whole
            if at + length > end:
                continue
            if whole and at + length < end and uint8(97) <= page[at + length] <= uint8(122):
                continue
            same = True
            for place in range(length):
                same = same and _lower(page[at + place]) == letters[starts[word] + place]
            if same:
                found |= marks[word]
    return found


@njit(cache=True, nogil=True)
def _attributes(page: Bytes, at: int, words: tuple[Bytes, Table, Table, Table]) -> tuple[int, int]:
    """The byte after a tag whose name ends at `at`, and its marks."""
    size, marks = len(page), 0
    while at < size and page[at] != 62:
        if is_blank(page[at]) or page[at] == 47:
            at += 1
            continue
        name = at
        at += 1
        while at < size and not is_blank(page[at]) and page[at] != 61 and page[at] != 62 and page[at] != 47:
            at += 1
        length = at - name
        initial = _lower(page[name])
        while at < size and is_blank(page[at]):
            at += 1
        if at >= size or page[at] != 61:
            if length == 6 and initial == 104 and _lower(page[name + 5]) == 110:  # hidden
                marks |= INSERT
            continue
        at += 1
        while at < size and is_blank(page[at]):
            at += 1
        value = at
        if at < size and (page[at] == 34 or page[at] == 39):
            value += 1
            at += 1
            while at < size and page[at] != page[value - 1]:
                at += 1
            end = at
            at += 1
        else:
            while at < size and not is_blank(page[at]) and page[at] != 62:
                at += 1
            end = at
        marks |= _value_marks(page, name, length, value, end, words)
    return min(at + 1, size), marks


@njit(cache=True, nogil=True)
def _value_marks(
    page: Bytes, name: int, length: int, value: int, end: int, words: tuple[Bytes, Table, Table, Table]
) -> int:
    """Return the marks of class, id, role, style, itemprop or href; 0 for other attributes.

    Names are recognised by length, first and last letter. Other names with these (scope, shape) have no such words.
    """
    initial, last = _lower(page[name]), _lower(page[name + length - 1])
    if length == 4 and initial == 104 and last == 102:  # href
        return LINK if end > value else 0
    if (
        (length == 2 and initial == 105 and last == 100)  # id
        or (length == 5 and ((initial == 99 and last == 115) or (initial == 115 and last == 101)))  # class, style
        or (length == 4 and initial == 114 and last == 101)  # role
        or (length == 8 and initial == 105 and last == 112)  # itemprop
    ):
        return _said(page, value, end, words)
    return 0


@njit(cache=True, nogil=True)
def _after(page: Bytes, at: int, name: int, end: int) -> int:
    """The byte after the closing tag of the unread element whose name is page[name:end], searched from `at`."""
    size, length, start = len(page), end - name, at
    while at + 2 + length <= size:
        if page[at] == 60 and page[at + 1] == 47:
            same = True
            for place in range(length):
                same = same and _lower(page[at + 2 + place]) == _lower(page[name + place])
            if same:
                at += 2 + length
                while at < size and page[at] != 62:
                    at += 1
                return min(at + 1, size)
        at += 1
    return size if page[name] | uint8(0x20) == 115 else start  # unclosed, a script or style reaches to the end


@njit(cache=True, nogil=True)
def _comment_end(page: Bytes, at: int) -> int:
    """The byte after a comment, declaration or instruction that begins at `at`."""
    size = len(page)
    if at + 3 < size and page[at + 1] == 33 and page[at + 2] == 45 and page[at + 3] == 45:
        place = at + 4
        if place < size and page[place] == 62:
            return place + 1
        while place < size:
            dash = place - 2 if page[place - 1] == 33 else place - 1  # --!> ends it too
            if page[place] == 62 and page[dash] == 45 and page[dash - 1] == 45 and dash > at + 3:
                return place + 1
            place += 1
        return size
    place = at + 2
    while place < size and page[place] != 62:
        place += 1
    return min(place + 1, size)


@njit(cache=True, nogil=True)
def tags_of(page: Bytes, names: Names, kinds: Bytes, words: tuple[Bytes, Table, Table, Table]) -> Table:
    """The tags of a page in order, one row of four columns each."""
    size, script = len(page), _SCRIPT
    room = 0
    for at in range(size - 1):
        room += page[at] == 60 and (_is_letter(page[at + 1]) or page[at + 1] in (33, 47, 63))
    tags = np.empty((room, 4), np.int32)
    unclosed = np.zeros(len(kinds), np.bool_)  # elements whose end was searched for in vain
    count, at = 0, 0
    while at < size - 1:
        if page[at] != 60:
            at += 1
            continue
        closing = page[at + 1] == 47
        name = at + 1 + closing
        tag, marks = 0, 0
        if name < size and _is_letter(page[name]):
            end = name
            while end < size and not is_blank(page[end]) and page[end] != 62 and page[end] != 47:
                end += 1
            tag = _number(page, name, end, names)
            after, marks = _attributes(page, end, words)
            if not closing and page[after - 2] == 47 and kinds[tag] in (RAW, UNSEEN) and tag != script:
                tag = 0  # <svg/>, and <title/> in it
            elif not closing and kinds[tag] == RAW:
                content = after
                if not unclosed[tag]:
                    after = _after(page, content, name, end)
                unclosed[tag] = after == content
                tag = 0
        elif closing or page[at + 1] == 33 or page[at + 1] == 63:
            after = _comment_end(page, at)
        else:
            at += 1
            continue
        tags[count, BEGIN], tags[count, END] = at, after
        tags[count, TAG], tags[count, MARKS] = (-tag if closing else tag), marks
        count += 1
        at = after
    return tags[:count]
