"""A page of HTML as a sequence of blocks, each of a kind: prose, heading, links, frame, insert."""

from html import unescape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.corpus.kernels import html_blocks as column
from trivium.corpus.kernels.html_tags import (
    BODY,
    FRAME,
    INSERT,
    KINDS,
    NAMES,
    NUMBER,
    QUOTE,
    SECTION,
    Table,
    Words,
    tags_of,
)
from trivium.corpus.kernels.texts import Bytes

Mask = NDArray[np.bool_]
Amounts = NDArray[np.float64]
Places = NDArray[np.intp]

# Words in class, id, role, itemprop and style that are common in the web's templates, not those of a single site. A
# blank marks that the word must end there.
_WORDS = Words(
    {
        BODY: (
            *("articlebody", "article-body", "article_body", "article__body", "article-text"),
            *("article-content", "article__content", "entry-content", "entry_content"),
            *("post-content", "post-body", "story-body", "storybody"),
        ),
        FRAME: ("comment", "disqus", "cookie", "consent", "gdpr", "footer", "contentinfo"),
        INSERT: (
            *("advert", "ad ", "ads ", "promo", "sponsor", "outbrain", "taboola", "paywall"),
            *("related", "recommend", "trending", "most-read", "read-more", "readmore"),
            *("newsletter", "subscri", "signup", "sign-up", "share", "social"),
            *("caption", "gallery", "slideshow", "byline", "breadcrumb", "sidebar", "complementary"),
            *("dialog", "tooltip", "sr-only", "display:none", "display: none"),
        ),
    }
).arrays()
_MARKS = np.zeros(len(KINDS), np.int32)
_MARKS[[NUMBER[name] for name in ("aside", "dialog", "figcaption", "footer", "form", "nav")]] = FRAME
_MARKS[NUMBER["blockquote"]], _MARKS[NUMBER["article"]] = QUOTE, BODY
_MARKS[NUMBER["section"]] = SECTION

# Minimum characters of prose without the end of a sentence and with one, and maximum mean characters of its words.
_PROSE_CHARACTERS, _SENTENCE_CHARACTERS, _WORD_CHARACTERS = 80, 20, 15
_MAX_PAGE_BYTES = 1 << 30  # positions are 32-bit


def elements(*names: str) -> Mask:
    """Return a mask over the numbers of elements that selects `names`."""
    found = np.zeros(len(KINDS), np.bool_)
    found[[NUMBER[name] for name in names]] = True
    return found


_HEADINGS = elements("h1", "h2", "h3", "h4", "h5", "h6")


class Page(NamedTuple):
    """A page's blocks. Every array but `text` and `ranges` has one entry, or row, per block.

    blocks, ranges: tables of kernels/html_blocks.py. weight: characters, or three for one of three bytes, which is
    about a word. linked: characters in links. prose_before: the weight of the prose before the block; a last entry for
    all of it. body, section: the innermost element around the block that is marked as an article, or is a section, as a
    row of `ranges`; -1 if there is none.
    """

    text: Bytes
    blocks: Table
    ranges: Table
    weight: Amounts
    linked: Amounts
    mostly_links: Mask
    heading: Mask
    prose: Mask
    prose_before: Amounts
    body: Places
    section: Places

    @property
    def element(self) -> Table:
        """The number of each block's element."""
        return self.blocks[:, column.ELEMENT]

    @property
    def depth(self) -> Table:
        """The number of block elements around each block."""
        return self.blocks[:, column.DEPTH]

    @property
    def shared(self) -> Table:
        """The number of block elements around each block and the one before it."""
        return self.blocks[:, column.SHARED]

    def of(self, number: int) -> str:
        """Return the text of one block."""
        start, stop = self.blocks[number, column.START], self.blocks[number, column.STOP]
        return unescape(self.text[start:stop].tobytes().decode("utf-8", "replace"))

    def prose_in(self, mask: Mask) -> float:
        """Return the weight of the prose among some blocks."""
        return float(self.weight[mask & self.prose].sum())

    def covered(self, mark: int, *, most: float = np.inf, around: int = -1) -> Mask:
        """Return the blocks in elements with the mark.

        Elements that contain more than `most` prose, or the block `around`, do not count.
        """
        first, last = self.ranges[:, column.FIRST], self.ranges[:, column.LAST]
        counts = (self.ranges[:, column.SAYS] & mark) != 0
        counts &= (self.prose_before[last] - self.prose_before[first] <= most) & ~((first <= around) & (around < last))
        return self._inside(counts)

    def quoted(self) -> Mask:
        """Return the blocks in quotations, such as embedded posts. A quotation of nothing but links does not count."""
        first, last = self.ranges[:, column.FIRST], self.ranges[:, column.LAST]
        said = np.concatenate([[0], np.cumsum(~self.mostly_links)])
        return self._inside(((self.ranges[:, column.SAYS] & QUOTE) != 0) & (said[last] > said[first]))

    def _inside(self, chosen: Mask) -> Mask:
        size = len(self.blocks) + 1
        first, last = (np.bincount(self.ranges[chosen, edge], minlength=size) for edge in (column.FIRST, column.LAST))
        return np.cumsum(first - last)[:-1] > 0


def page_of(html: str) -> Page:
    """Return the blocks of a page, but only of its first 2^30 bytes."""
    data = np.frombuffer(memoryview(html.encode("utf-8", "replace"))[:_MAX_PAGE_BYTES], np.uint8)
    text, blocks, ranges = column.blocks_of(data, tags_of(data, NAMES, KINDS, _WORDS), KINDS, _MARKS)
    size, linked = blocks[:, column.SIZE], blocks[:, column.LINKED]
    width = blocks[:, column.STOP] - blocks[:, column.START]
    wide = 2 * width >= 5 * size  # the characters have three bytes
    mostly_links = 2 * linked >= size
    heading = _HEADINGS[blocks[:, column.ELEMENT]]
    own = np.where(wide, 3, 1) * (size - linked)
    prose = (own >= _PROSE_CHARACTERS) | ((own >= _SENTENCE_CHARACTERS) & (blocks[:, column.SENTENCE] > 0))
    prose &= (wide | (size <= _WORD_CHARACTERS * (blocks[:, column.BLANKS] + 1))) & ~mostly_links & ~heading
    body, section = (_innermost(len(blocks), ranges, mark) for mark in (BODY, SECTION))
    weight = np.where(wide, width, size).astype(np.float64)
    links = linked.astype(np.float64)
    prose_before = np.concatenate([[0.0], np.cumsum(np.where(prose, weight, 0.0))])
    return Page(text, blocks, ranges, weight, links, mostly_links, heading, prose, prose_before, body, section)


def _innermost(size: int, ranges: Table, mark: int) -> Places:
    """Return the row of `ranges` of the innermost element with the mark around each block, or -1."""
    around = np.full(size, -1)
    for number in np.flatnonzero(ranges[:, column.SAYS] & mark).tolist():
        around[ranges[number, column.FIRST] : ranges[number, column.LAST]] = number
    return around
