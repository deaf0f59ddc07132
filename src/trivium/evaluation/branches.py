"""Pack windows into batches in which a shared prefix is read once.

A family is a group of windows with a common prefix. The prefix is the trunk: it is read causally and its keys and
values are cached. The remaining tokens form a tree. Each token attends to the trunk and to its ancestors in the tree,
so that all choices of a question, or all questions after a common prompt, are read in one pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trivium.evaluation.windows import Window

MAX_ROW_TOKENS = 512  # branch tokens read in one pass after a trunk
MAX_BATCH_TOKENS = 2048  # padding included
MAX_PADDING_RATIO = 1.15  # tokens with padding over tokens without, for batches of MIN_BATCH_TOKENS or more
MIN_BATCH_TOKENS = 512  # a smaller batch accepts any padding


class Ask(NamedTuple):
    """A prediction to be scored: the logits at `place` are compared with `target` for window `number`.

    place: a position in the trunk, or the trunk's length plus the index of a token of the row.
    """

    number: int
    place: int
    target: int


@dataclass
class Row:
    """Branches after a trunk of `trunk` tokens. `parents` has the row index of each token's parent, or -1 for the
    trunk."""

    trunk: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    _path: list[int] = field(default_factory=list)  # row indices of the last added window's tokens

    def missing(self, read: Sequence[int]) -> int:
        """Return how many tokens adding this window would append."""
        return len(read) - self.trunk - self._common(read)

    def add(self, number: int, window: Window) -> None:
        """Add a window. Windows must be added in sorted order of their ids, so that a shared prefix is shared by
        neighbours."""
        read = window.read
        path = self._path[: self._common(read)]
        for token in read[self.trunk + len(path) :]:
            self.parents.append(path[-1] if path else -1)
            self.depths.append(len(path))
            path.append(len(self.tokens))
            self.tokens.append(token)
        for place in range(len(read) - window.answer, len(read)):
            behind = place - self.trunk
            self.asks.append(Ask(number, place if behind < 0 else self.trunk + path[behind], window.ids[place + 1]))
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
        """The number of tokens of the longest row."""
        return max(len(row.tokens) for row in self.rows)

    @property
    def tokens(self) -> int:
        """The number of tokens read."""
        return len(self.trunk) + sum(len(row.tokens) for row in self.rows)


Batch = list[Family]  # read together; a batch has several families only if each has a single row


def families(windows: Sequence[Window]) -> list[Family]:
    """Group windows into trunks and branches, so that each shared prefix is read once."""
    order = sorted(range(len(windows)), key=lambda n: windows[n].read)
    found: list[list[int]] = []
    for number in order:
        if found and _alike(windows[found[-1][-1]], windows[number]):
            found[-1].append(number)
        else:
            found.append([number])
    return [_family(numbers, windows) for numbers in found]


def batches(found: Sequence[Family]) -> list[Batch]:
    """Batch families of similar lengths. The longest batch comes first: if it fits into memory, all others do."""
    made = [[f] for f in found if len(f.rows) > 1]
    alone = sorted((f for f in found if len(f.rows) == 1), key=lambda f: (-len(f.trunk), -f.width))
    batch: Batch = []
    for family in alone:
        if batch and not _fits(batch, family):
            made.append(batch)
            batch = []
        batch.append(family)
    made += [batch] if batch else []
    return sorted(made, key=lambda batch: -_padded(batch))


def _fits(batch: Batch, family: Family) -> bool:
    padded = _padded([*batch, family])
    if padded > MAX_BATCH_TOKENS:
        return False
    exact = sum(f.tokens for f in batch) + family.tokens
    return padded <= MAX_PADDING_RATIO * exact or exact < MIN_BATCH_TOKENS


def _padded(some: Sequence[Family]) -> int:
    return len(some) * (max(len(f.trunk) for f in some) + max(f.width for f in some))


def _alike(one: Window, other: Window) -> bool:
    """Whether two neighbours belong to one family: they share at least half of the shorter one, or the full question
    and a quarter of the shorter one."""
    common = _common(one.read, other.read)
    shorter = min(len(one.read), len(other.read))
    question = min(len(w.ids) - w.answer for w in (one, other))
    return 2 * common >= shorter or (common >= question and 4 * common >= shorter)


def _family(numbers: list[int], windows: Sequence[Window]) -> Family:
    # In sorted order, the first and the last window have the shortest common prefix.
    trunk = windows[numbers[0]].read[: _common(windows[numbers[0]].read, windows[numbers[-1]].read)]
    return Family(trunk, list(_rows(numbers, windows, len(trunk))))


def _rows(numbers: list[int], windows: Sequence[Window], trunk: int) -> Iterator[Row]:
    row = Row(trunk)
    for number in numbers:
        if row.tokens and len(row.tokens) + row.missing(windows[number].read) > MAX_ROW_TOKENS:
            yield row
            row = Row(trunk)
        row.add(number, windows[number])
    yield row


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix by bisection; comparing slices is faster than comparing elements."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
