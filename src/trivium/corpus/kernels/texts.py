"""Columns of text for kernels, as UTF-8 bytes and offsets, and the definition of a word.

A word is a run of `\\w` characters and combining marks (Hindi's vowels are marks), each folded to lower case
separately. A folded word thus has as many characters as the original, and case never distinguishes two words (the Greek
final sigma is a sigma, the dotted İ an i).

Chinese, Japanese, Thai and other scripts have no blanks between words. There each letter, with the marks on it, is a
word of its own: a run of five words is then a run of five letters, and not of five clauses.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
FoldTable = NDArray[np.uint32]

_CODE_POINTS = 0x110000
_WITH_MARKS = 0x20000  # from here on, variation selectors are the only combining marks
_LOOKS = range(0xFE00, 0xFE10)  # variation selectors: marks too, but emoji have them and no word needs them
_MARKS = "".join(
    chr(point)
    for point in range(_WITH_MARKS)
    if unicodedata.category(chr(point)) in ("Mn", "Mc") and point not in _LOOKS
)
# First and last code points of the scripts without blanks between words.
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x3005, 0x3007),  # iteration mark and zero of Chinese and Japanese
    (0x3021, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31FF),  # more of these
    (0x3400, 0x4DBF),  # Chinese characters
    (0x4E00, 0xA4CF),  # Chinese characters, Yi
    (0xA980, 0xA9FF),  # Javanese, more of Burmese
    (0xAA60, 0xAADF),  # more of Burmese, Tai Viet
    (0xF900, 0xFAFF),  # Chinese characters for compatibility
    (0xFF66, 0xFF9F),  # Katakana of half width
    (0x16FE0, 0x18DFF),  # Tangut, Khitan
    (0x1AFF0, 0x1B2FF),  # more of Kana, Nushu
    (0x20000, 0x3FFFF),  # Chinese characters
)
_ALONE = "".join(
    char
    for first, last in _UNSPACED
    for char in map(chr, range(first, last + 1))
    if char.isalnum() and char not in _MARKS
)
_RANGES = "".join(f"{chr(first)}-{chr(last)}" for first, last in _UNSPACED)
WORD = re.compile(rf"\w(?<=[{_RANGES}])[{_MARKS}]*|(?:[^\W{_RANGES}]+|[{_MARKS}]+)+")
_ASCII_WORD = re.compile(r"\w+", re.ASCII)
# Bits of the fold table in addition to the code point: a letter that is a separate word, and a mark on a letter.
ALONE, MARK, LETTER_BITS = 1 << 31, 1 << 30, 0x1FFFFF


class Texts(NamedTuple):
    """A column: text `i` is the UTF-8 in data[offsets[i] : offsets[i + 1]]."""

    data: Bytes
    offsets: Offsets

    @property
    def num_texts(self) -> int:
        """The number of texts."""
        return len(self.offsets) - 1


def texts_of(column: pa.Array | pa.ChunkedArray | Sequence[str]) -> Texts:
    """Convert an Arrow column of strings without nulls, or Python strings. Arrow's buffers are shared, not copied."""
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        column = pa.array(column, pa.large_string())
    whole = column.cast(pa.large_string())
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], pa.large_string())
    if len(whole) == 0:
        return _read_only(np.frombuffer(b"", np.uint8), np.frombuffer(bytes(8), np.int64))
    _, places, content = whole.buffers()
    offsets = np.frombuffer(places, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    data = np.frombuffer(content, np.uint8) if content is not None else np.frombuffer(b"", np.uint8)
    return _read_only(data, offsets)


def joined(texts: Sequence[str]) -> Texts:
    """Convert Python strings. Lone surrogates are stored in three bytes each."""
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
    return _read_only(np.frombuffer(b"".join(parts), np.uint8), offsets)


def _read_only(data: Bytes, offsets: Offsets) -> Texts:
    """Make both arrays read-only. Only some Arrow buffers are, and kernels would be compiled for each kind."""
    data.flags.writeable = offsets.flags.writeable = False
    return Texts(data, offsets)


def fold(text: str) -> str:
    """Convert to lower case character by character, so that positions do not change."""
    return text.replace("İ", "i").replace("Σ", "σ").lower().replace("ς", "σ")


def words_of(text: str) -> list[str]:
    """Return the words of a text, as the kernels hash them."""
    folded = fold(text)
    return (_ASCII_WORD if folded.isascii() else WORD).findall(folded)  # the first pattern finds the same words faster


@lru_cache(maxsize=1)
def fold_table() -> FoldTable:
    """Return, for each code point, its lower case with the bits ALONE or MARK; 0 for one that is in no word."""
    every = "".join(map(chr, range(_CODE_POINTS)))
    folded = np.frombuffer(fold(every).encode("utf-32-le", "surrogatepass"), np.uint32)
    table = np.zeros(_CODE_POINTS, np.uint32)
    for run in re.finditer(r"\w+", every):  # WORD finds the same, but takes a second
        table[run.start() : run.end()] = folded[run.start() : run.end()]
    marks = list(map(ord, _MARKS))
    table[marks] = folded[marks] | np.uint32(MARK)
    table[list(map(ord, _ALONE))] |= np.uint32(ALONE)
    table.flags.writeable = False
    return table
