"""Extract the article of an HTML page: the chain of paragraphs with the greatest value.

An article is a chain of blocks of prose. The value of a block is its number of characters. A link between neighbours
has a cost, which depends on what is between them, and on how far outside the element with most prose they meet. The
chain with the greatest sum is the article (maximum subsequence segmentation; Pasternack and Roth, WWW 2009), but one
under the page's own title is preferred. Isolated prose, such as a teaser or a comment, has a low value. So the result
does not depend on the names in a page's template. They only decide what is left out of a chain found without them.
"""

import json
import re
from html import unescape

import numpy as np

from trivium.corpus.clean.page_blocks import Amounts, Mask, Page, Places, elements, page_of
from trivium.corpus.kernels.html_blocks import SIZE
from trivium.corpus.kernels.html_tags import FRAME, INSERT, KINDS, NUMBER

# All costs are in characters of prose. The costs of each line between two blocks: any line, a line of links, a heading,
# a cell or item, a line in a frame.
_LINE, _LINK_LINE, _HEADING, _CELL, _FRAMED = 40.0, 80.0, 12.0, 10.0, 10.0
# The most that all these lines cost: between children of one element, inside one marked article, anywhere.
_AMONG_SIBLINGS, _IN_BODY, _ANYWHERE = 60.0, 30.0, 120.0
# A first-level heading between blocks without a common article or element, and each level outside the main element.
_ANOTHER_TITLE, _LEVEL = 400.0, 60.0
# A block loses twice its linked characters, and an isolated block has this share of its value.
_LINKED, _ALONE = 2.0, 0.2
# The chain under the page's title is preferred if it has this share of the best chain's value.
_UNDER_TITLE = 0.3
# At most this share of the page's prose is in frames, and of the article's prose in inserts.
_FRAME_SHARE, _INSERT_SHARE = 0.5, 0.3
_MOSTLY_LINKS = 0.6  # linked share of a block's characters with which it is left out of the article
# Characters. With less prose outside frames, there are no frames. A shorter text may be replaced by `articleBody`.
_FEW = 250
_MIN_TITLE = 15  # characters that a heading shares with the page's title

_FIRST_HEADING = elements("h1")
_CELLS = elements("dd", "dt", "li", "td", "th")
_OTHER_VOICES = elements("blockquote", "dd", "dt", "li", "pre", "td", "th")
_TITLE = re.compile(r"<title[^<>]{0,200}+>([^<]{0,1000})", re.I)
_STATED_NAME = '"articleBody"'
# Possessive, because backtracking would need gigabytes for a large page.
_STATED = re.compile(r'\s*+:\s*+("(?:[^"\\]++|\\.)*+")')
_NO_WORD = re.compile(r"\W+")


def main_text(html: str) -> str:
    """Return the article of a page, as paragraphs with blank lines between them.

    A page without prose gives all its text outside frames and links. If the text has less than 250 characters, the
    publisher's `articleBody` (schema.org, in JSON) is returned if it is longer.
    """
    page = page_of(html)
    title = _title_place(page, html)
    frames = page.covered(FRAME, most=_FRAME_SHARE * page.prose_in(page.prose), around=title)
    quoted = page.quoted()
    framed = frames & ~quoted
    if page.prose_in(~framed) < min(_FEW, page.prose_in(framed)):
        framed[:] = False
    good = page.prose & ~framed
    if good.any():
        first, last = _chain(page, good, framed, title)
        last = _ending(page, first, last, quoted)
        run = ~framed
        run[:first] = run[last + 1 :] = False
        text = _joined(page, _kept(page, run, quoted))
    else:
        text = _joined(page, ~framed & ~page.mostly_links)
    return text if len(text) >= _FEW else max(text, _stated_body(html), key=len)


def _stated_body(html: str) -> str:
    """Return the page's first `articleBody` in JSON, or ""."""
    place = html.find(_STATED_NAME)
    found = _STATED.match(html, place + len(_STATED_NAME)) if place >= 0 else None
    try:
        return unescape(str(json.loads(found[1], strict=False))) if found else ""
    except ValueError:
        return ""


def _title_place(page: Page, html: str) -> int:
    """Return the heading that shares most with the page's title, so that one contains the other, or -1."""
    found = _TITLE.search(html)
    title = _words(unescape(found[1])) if found else ""
    best, place = _MIN_TITLE - 1, -1
    for is_link in (False, True):
        for number in np.flatnonzero(page.heading & (page.mostly_links == is_link)).tolist():
            heading = _words(page.of(number))
            shared = min(len(heading), len(title))
            if shared > best and (heading in title or title in heading):
                best, place = shared, number
    return place


def _words(text: str) -> str:
    return _NO_WORD.sub(" ", text.lower()).strip()


def _chain(page: Page, good: Mask, framed: Mask, title: int) -> tuple[int, int]:
    """Return the first and the last block of the article's chain of good blocks."""
    places = np.flatnonzero(good)
    cost, together = _links(page, good, framed, places)
    alone = np.ones(len(places), np.bool_)
    alone[1:] &= ~together
    alone[:-1] &= ~together
    worth = (page.weight - _LINKED * page.linked)[places]
    worth = np.where(alone & (worth > 0), _ALONE * worth, worth)
    best, first, last = _best(worth, cost)
    begin, end = np.searchsorted(places, _under_title(page, places, title)).tolist()
    if begin < end:
        titled, from_, to = _best(worth[begin:end], cost[begin : end - 1])
        if titled >= _UNDER_TITLE * best:
            first, last = begin + from_, begin + to
    return int(places[first]), int(places[last])


def _best(worth: Amounts, cost: Amounts) -> tuple[float, int, int]:
    """Return sum, first and last place of the run whose value minus the cost of its links is greatest."""
    best = total = 0.0
    start = first = last = 0
    for place, (value, link) in enumerate(zip(worth.tolist(), [0.0, *cost.tolist()], strict=True)):
        total -= link
        if total <= 0:
            total, start = 0.0, place
        total += value
        if total > best:
            best, first, last = total, start, place
    return best, first, last


def _under_title(page: Page, places: Places, title: int) -> tuple[int, int]:
    """Return the range of blocks under the page's title, up to a first-level heading of another article."""
    if title < 0 or places[-1] < title:
        return 0, 0
    start = places[np.searchsorted(places, title)]
    others = _FIRST_HEADING[page.element]
    others &= (page.body != page.body[title]) & (page.body != page.body[start])
    others[:start] = False
    return title, int(others.argmax()) if others.any() else len(others)


def _links(page: Page, good: Mask, framed: Mask, places: Places) -> tuple[Amounts, Mask]:
    """Return the costs of the links between neighbours of a chain, and whether the neighbours belong together.

    They do if nothing but headings and frames is between them, as children of one element, and inside one article.
    """
    if len(places) < 2:
        return np.zeros(0), np.zeros(0, np.bool_)
    before, after = places[:-1], places[1:]
    element, depth = page.element, page.depth
    heading = page.heading & ~page.mostly_links
    kinds = [good, framed, page.mostly_links, heading, _CELLS[element]]
    lines = np.select(kinds, [0.0, _FRAMED, _LINK_LINE, _HEADING, _CELL], _LINE)
    cost = np.diff(np.cumsum(lines)[places])
    # The number of block elements around both ends.
    meet = np.minimum.reduceat(page.shared[: places[-1] + 1], before + 1)
    siblings = meet >= np.maximum(depth[before], depth[after]) - 1
    same_body = (page.body[before] == page.body[after]) & (page.body[after] >= 0)
    together = (np.diff(np.cumsum(~good & ~framed & ~heading)[places]) == 0) | siblings | same_body
    most = np.select([same_body, siblings], [_IN_BODY, _AMONG_SIBLINGS], _ANYWHERE)
    another = np.diff(np.cumsum(_FIRST_HEADING[element] & ~framed)[places]) > 0
    # Chapters of one text are children of one element, as from Markdown, or each is in a section of it.
    sections = (page.section[[before, after]] >= 0).all(axis=0) & (depth[before] == depth[after])
    chapters = siblings | (sections & (page.body[before] == page.body[after]) & (meet == depth[after] - 2))
    another &= ~same_body & ~chapters
    cost = np.minimum(cost, most) + np.where(another, _ANOTHER_TITLE, 0.0)
    # The level of the article's element, where most prose meets its neighbour.
    share = np.minimum(page.weight[before], page.weight[after]) * np.where(together, 1.0, _ALONE)
    order = np.argsort(meet, kind="stable")
    middle = int(np.searchsorted(np.cumsum(share[order]), share.sum() / 2))
    article = meet[order][min(middle, len(order) - 1)]
    return cost + _LEVEL * np.maximum(article - meet, 0), together


def _ending(page: Page, first: int, last: int, quoted: Mask) -> int:
    """Return the last block of an article whose chain ends at `last`.

    Embedded posts that are too short for prose may follow directly, in the element that contains the whole chain.
    """
    shared = page.shared
    around = shared[first + 1 : last + 1].min() if first < last else page.depth[last] - 1
    belongs = quoted & ~page.covered(FRAME) & (shared >= around)
    others = np.flatnonzero(~belongs[last + 1 :])
    return last + int(others[0]) if len(others) else len(shared) - 1


def _kept(page: Page, run: Mask, quoted: Mask) -> Mask:
    """Return the blocks of a chain without inserts, lists of links, captions, and headings of nothing.

    A quotation is kept whole, because its links are words of the person who is quoted.
    """
    element = page.element
    heading = page.heading & ~page.mostly_links
    most = _INSERT_SHARE * page.prose_in(run)
    inserted = page.covered(INSERT, most=most) & ~quoted & run
    if page.prose_in(inserted) <= most:
        run = run & ~inserted
    # Short lines in another element than the paragraphs' are captions, dates or buttons.
    prose = run & page.prose
    voice = np.bincount(element[prose], weights=page.weight[prose], minlength=len(KINDS)).argmax()
    kept: Mask = run & (page.linked <= _MOSTLY_LINKS * page.blocks[:, SIZE])
    kept &= page.prose | heading | _OTHER_VOICES[element] | (element == voice)
    kept |= run & quoted
    something_follows = False
    for number in np.flatnonzero(run)[::-1].tolist():
        if heading[number]:
            kept[number] &= something_follows
        else:
            something_follows = bool(kept[number])
    return kept


def _joined(page: Page, kept: Mask) -> str:
    """Return the text of these blocks, with items and rows as lines, and tabs between the cells of a row."""
    parts: list[str] = []
    before = -1
    for number in np.flatnonzero(kept).tolist():
        if before >= 0:
            parts.append(_between(page, before, number))
        if page.element[number] == NUMBER["li"]:
            parts.append("• ")
        parts.append(page.of(number))
        before = number
    return "".join(parts)


def _between(page: Page, before: int, number: int) -> str:
    if before + 1 < number or not _CELLS[page.element[before : number + 1]].all():
        return "\n\n"
    is_cell = page.element[number] in (NUMBER["td"], NUMBER["th"])
    return "\t" if is_cell and page.shared[number] == page.depth[number] - 1 == page.depth[before] - 1 else "\n"
