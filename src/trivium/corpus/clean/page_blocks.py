"""A page of HTML as a sequence of blocks, and what each of them is: prose, heading, links, frame, insert."""

from html import unescape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.corpus.kernels.html_blocks import (
    BLANKS,
    ELEMENT,
    FIRST,
    LAST,
    LINKED,
    SAYS,
    SENTENCE,
    SIZE,
    START,
    STOP,
    blocks_of,
)
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

# What class, id, role, itemprop and style say: habits of the web's templates, no site's own. A blank ends a word
# that must end there.
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

# Characters: a block so long is prose, a sentence already when so long; a word has fewer than so many.
_LONG, _SENTENCE, _WORD = 80, 20, 15
_LONGEST = 1 << 30  # bytes: positions are 32-bit


def elements(*names: str) -> Mask:
    """Which numbers of elements are those of `names`."""
    found = np.zeros(len(KINDS), np.bool_)
    found[[NUMBER[name] for name in names]] = True
    return found


_HEADINGS = elements("h1", "h2", "h3", "h4", "h5", "h6")


class Page(NamedTuple):
    """A page's blocks; every array but `text` and `ranges` has one entry, or row, per block."""

    text: Bytes
    blocks: Table
    ranges: Table
    weight: Amounts  # characters; three for one of three bytes, which is about a word
    linked: Amounts  # characters in links
    mostly_links: Mask
    heading: Mask
    prose: Mask
    prose_before: Amounts  # the weight of the prose before it; one entry more, for all of it
    body: Places  # the innermost element around it that says it is an article, as a range; -1 where none does
    section: Places  # the innermost `section` around it, likewise

    def of(self, number: int) -> str:
        """The text of one block."""
        start, stop = self.blocks[number, START], self.blocks[number, STOP]
        return unescape(self.text[start:stop].tobytes().decode("utf-8", "replace"))

    def prose_in(self, mask: Mask) -> float:
        """The weight of the prose among some blocks."""
        return float(self.weight[mask & self.prose].sum())

    def covered(self, mark: int, *, most: float = np.inf, around: int = -1) -> Mask:
        """Blocks in elements with the mark, but those that hold more than `most` of prose, or the block `around`."""
        first, last = self.ranges[:, FIRST], self.ranges[:, LAST]
        counts = (self.ranges[:, SAYS] & mark) != 0
        counts &= (self.prose_before[last] - self.prose_before[first] <= most) & ~((first <= around) & (around < last))
        return self._inside(counts)

    def quoted(self) -> Mask:
        """Blocks in quotations, such as embedded posts; a quotation of nothing but links only leads elsewhere."""
        first, last = self.ranges[:, FIRST], self.ranges[:, LAST]
        said = np.concatenate([[0], np.cumsum(~self.mostly_links)])
        return self._inside(((self.ranges[:, SAYS] & QUOTE) != 0) & (said[last] > said[first]))

    def _inside(self, chosen: Mask) -> Mask:
        """Blocks in the chosen ranges."""
        size = len(self.blocks) + 1
        first, last = (np.bincount(self.ranges[chosen, column], minlength=size) for column in (FIRST, LAST))
        return np.cumsum(first - last)[:-1] > 0


def page_of(html: str) -> Page:
    """The blocks of a page; of one beyond 2^30 bytes, those before."""
    raw = html.encode("utf-8", "replace")
    data = np.frombuffer(raw[:_LONGEST] if len(raw) > _LONGEST else raw, np.uint8)
    text, blocks, ranges = blocks_of(data, tags_of(data, NAMES, KINDS, _WORDS), KINDS, _MARKS)
    size, linked = blocks[:, SIZE], blocks[:, LINKED]
    width = blocks[:, STOP] - blocks[:, START]
    wide = 2 * width >= 5 * size  # of characters of three bytes
    mostly_links = 2 * linked >= size
    heading = _HEADINGS[blocks[:, ELEMENT]]
    own = np.where(wide, 3, 1) * (size - linked)
    prose = (own >= _LONG) | ((own >= _SENTENCE) & (blocks[:, SENTENCE] > 0))
    prose &= (wide | (size <= _WORD * (blocks[:, BLANKS] + 1))) & ~mostly_links & ~heading
    body, section = (_innermost(len(blocks), ranges, mark) for mark in (BODY, SECTION))
    weight = np.where(wide, width, size).astype(np.float64)
    links = linked.astype(np.float64)
    prose_before = np.concatenate([[0.0], np.cumsum(np.where(prose, weight, 0.0))])
    return Page(text, blocks, ranges, weight, links, mostly_links, heading, prose, prose_before, body, section)


def _innermost(size: int, ranges: Table, mark: int) -> Places:
    """The innermost element with the mark around each block, as a range; -1 where there is none."""
    around = np.full(size, -1)
    for number in np.flatnonzero(ranges[:, SAYS] & mark).tolist():
        around[ranges[number, FIRST] : ranges[number, LAST]] = number
    return around
