"""What is common to many windows is read once: their tokens as trunks with branches, packed into batches.

A family of windows begins alike. Its common beginning is the trunk, read causally, and kept; the rest is a tree of
tokens, each of which sees the trunk and the tokens above it in the tree, so that all choices of a question, or all
questions after a common prompt, are read together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trivium.evaluation.windows import Window

ROW_TOKENS = 512  # of branches read together behind one trunk
BATCH_TOKENS = 2048  # read at once, padding included
WASTE = 1.15  # tokens with padding over tokens without, at most, in a batch that is large enough
ENOUGH_TOKENS = 512  # a batch that is large enough


class Ask(NamedTuple):
    """What the model predicts at `place` (in the trunk, or behind it the number of a branch's token) shall be
    compared with `target`, for window `number`."""

    number: int
    place: int
    target: int


@dataclass
class Row:
    """Branches behind a trunk of `trunk` tokens: each token with its parent among them (-1: the trunk)."""

    trunk: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    _path: list[int] = field(default_factory=list)  # the tokens' numbers of the last window added

    def missing(self, read: Sequence[int]) -> int:
        """How many tokens this window would add."""
        return len(read) - self.trunk - self._common(read)

    def add(self, number: int, window: Window) -> None:
        """Windows come sorted by their ids, so that what two have in common is that of neighbours."""
        read = window.read
        path = self._path[: self._common(read)]
        for token in read[self.trunk + len(path) :]:
            self.parents.append(path[-1] if path else -1)
            self.depths.append(len(path))
            path.append(len(self.tokens))
            self.tokens.append(token)
        for place in range(len(read) - window.answer, len(read)):
            behind = place - self.trunk
            self.asks.append(
                Ask(number, place if behind < 0 else self.trunk + path[behind], window.ids[place + 1])
            )
        self._path = path

    def _common(self, read: Sequence[int]) -> int:
        above = 0
        for number, token in zip(self._path, read[self.trunk :], strict=False):
            if self.tokens[number] != token:
                break
            above += 1
        return above


@dataclass
class Family:
    """A trunk and its rows."""

    trunk: list[int]
    rows: list[Row]

    @property
    def width(self) -> int:
        """Tokens of its longest row."""
        return max(len(row.tokens) for row in self.rows)

    @property
    def tokens(self) -> int:
        """Tokens read."""
        return len(self.trunk) + sum(len(row.tokens) for row in self.rows)


class Batch(NamedTuple):
    """Families read side by side; more than one only where each has a single row."""

    families: list[Family]

    @property
    def rounds(self) -> list[list[Row]]:
        """Rows read side by side, one after the other behind the same trunks."""
        return [list(rows) for rows in zip(*(f.rows for f in self.families), strict=True)]


def families(windows: Sequence[Window]) -> list[Family]:
    """The windows as trunks and branches; all together read each common beginning once."""
    order = sorted(range(len(windows)), key=lambda n: windows[n].read)
    found: list[list[int]] = []
    for number in order:
        if found and _alike(windows[found[-1][-1]], windows[number]):
            found[-1].append(number)
        else:
            found.append([number])
    return [_family(numbers, windows) for numbers in found]


def batches(found: Sequence[Family]) -> list[Batch]:
    """Families side by side, of similar lengths; the longest first, so that if that one fits, all fit."""
    made = [Batch([f]) for f in found if len(f.rows) > 1]
    alone = sorted((f for f in found if len(f.rows) == 1), key=lambda f: (-len(f.trunk), -f.width))
    batch: list[Family] = []
    for family in alone:
        if batch and not _fits(batch, family):
            made.append(Batch(batch))
            batch = []
        batch.append(family)
    made += [Batch(batch)] if batch else []
    return sorted(made, key=lambda b: -_padded(b.families))


def _fits(batch: list[Family], family: Family) -> bool:
    padded = _padded([*batch, family])
    if padded > BATCH_TOKENS:
        return False
    exact = sum(f.tokens for f in batch) + family.tokens
    return padded <= WASTE * exact or exact < ENOUGH_TOKENS


def _padded(some: Sequence[Family]) -> int:
    return len(some) * (max(len(f.trunk) for f in some) + max(f.width for f in some))


def _alike(one: Window, other: Window) -> bool:
    """Whether two neighbours belong to one family: half in common, or the same question and a quarter."""
    common = _common(one.read, other.read)
    shorter = min(len(one.read), len(other.read))
    question = min(len(w.ids) - w.answer for w in (one, other))
    return 2 * common >= shorter or (common >= question and 4 * common >= shorter)


def _family(numbers: list[int], windows: Sequence[Window]) -> Family:
    # In sorted order the first and the last have least in common.
    trunk = windows[numbers[0]].read[: _common(windows[numbers[0]].read, windows[numbers[-1]].read)]
    return Family(trunk, list(_rows(numbers, windows, len(trunk))))


def _rows(numbers: list[int], windows: Sequence[Window], trunk: int) -> Iterator[Row]:
    row = Row(trunk)
    for number in numbers:
        if row.tokens and len(row.tokens) + row.missing(windows[number].read) > ROW_TOKENS:
            yield row
            row = Row(trunk)
        row.add(number, windows[number])
    yield row


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How long the common beginning is; compares slices, which is fast, and halves."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
