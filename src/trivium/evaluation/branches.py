"""Pack windows into batches in which a shared prefix is read once, and score their targets.

A family is a group of windows with a common prefix. The prefix is the trunk: it is read causally and its keys and
values are cached. The remaining tokens form a tree. Each token attends to the trunk and to its ancestors in the tree,
so that all choices of a question, or all questions after a common prompt, are read in one pass.

Legend: P positions of a trunk, S tokens of a row, B families in a batch, H hidden.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from trivium.evaluation.windows import Window
from trivium.model.kv_cache import KVCache
from trivium.model.whole import WholeModel

Tensor = torch.Tensor

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
    """Branches after a trunk of `trunk` tokens. `parents` has the row index of each token's parent, or -1."""

    trunk: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    _path: list[int] = field(default_factory=list)  # row indices of the last added window's tokens

    def missing(self, read: Sequence[int]) -> int:
        return len(read) - self.trunk - self._common(read)

    def add(self, number: int, window: Window) -> None:
        """Add a window. Windows must be added in sorted order of their ids, so that neighbours share prefixes."""
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
        return max(len(row.tokens) for row in self.rows)

    @property
    def tokens(self) -> int:
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
    return sorted(made, key=lambda batch: -_size(batch))


def _fits(batch: Batch, family: Family) -> bool:
    padded = _size([*batch, family])
    if padded > MAX_BATCH_TOKENS:
        return False
    exact = sum(f.tokens for f in batch) + family.tokens
    return padded <= MAX_PADDING_RATIO * exact or exact < MIN_BATCH_TOKENS


def _size(some: Sequence[Family]) -> int:
    return len(some) * (max(len(f.trunk) for f in some) + max(f.width for f in some))


def _alike(one: Window, other: Window) -> bool:
    """Whether two neighbours share at least half of the shorter one, or the question and a quarter of it."""
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


def read_batch(model: WholeModel, batch: Batch, totals: Tensor) -> None:
    """Read the trunks once, then each round of rows after them.

    totals: fp64 [2, windows], to which the last pipeline stage adds for each scored token of a window its
    log-likelihood in nats, and 1 if it was not the argmax.
    """
    trunks = [f.trunk for f in batch]
    width = max(map(len, trunks))
    branches = max(f.width for f in batch)
    cache = KVCache(width + branches) if branches else None
    if width:
        hidden = model.hidden(_padded(trunks, model.device), cache=cache)
        if cache is not None:
            cache.keep(width)
        in_trunk = [
            (ask.place * len(trunks) + b, ask)
            for b, family in enumerate(batch)
            for row in family.rows
            for ask in row.asks
            if ask.place < row.trunk
        ]
        _compare(model, hidden, in_trunk, totals)
    if cache is None:
        return
    lengths = torch.tensor([len(t) for t in trunks], device=model.device)
    for rows in zip(*(f.rows for f in batch), strict=True):
        cache.mask = _mask(rows, lengths, width, model.dtype)
        depths = _padded([row.depths for row in rows], model.device)
        positions = (lengths + depths).clamp(max=model.model.sequence - 1)  # clamp the positions of padding as well
        tokens = _padded([row.tokens for row in rows], model.device)
        hidden = model.hidden(tokens, positions=positions, cache=cache)
        in_rows = [
            ((ask.place - row.trunk) * len(rows) + b, ask)
            for b, row in enumerate(rows)
            for ask in row.asks
            if ask.place >= row.trunk
        ]
        _compare(model, hidden, in_rows, totals)


def _compare(model: WholeModel, hidden: Tensor | None, asks: Sequence[tuple[int, Ask]], totals: Tensor) -> None:
    """Score the requested positions.

    hidden: [S, B, H]. asks: flattened index of position and sequence, and the prediction wanted there. Logits are
    computed only for these positions, once each.
    """
    if hidden is None or not asks:
        return
    places, numbers, targets = zip(*((place, ask.number, ask.target) for place, ask in asks), strict=True)
    read, rows = torch.unique(torch.tensor(places, device=model.device), return_inverse=True)
    target = torch.tensor(targets, device=model.device)
    nats, likeliest = model.likelihoods(hidden.flatten(0, 1)[read], rows=rows, targets=target)
    missed = (likeliest[rows] != target).to(nats.dtype)
    totals.index_add_(1, torch.tensor(numbers), torch.stack([nats, missed]).cpu())


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Pad rows with 0 at their end to [longest, rows]. The padding is never attended to."""
    width = max(map(len, rows))
    filled = [[*r, *[0] * (width - len(r))] for r in rows]
    return torch.tensor(filled, dtype=torch.long, device=device).T.contiguous()


def _mask(rows: Sequence[Row], lengths: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return the additive mask [B, 1, S, P + S]. A token attends to its trunk, its ancestors and itself."""
    longest = max(len(row.tokens) for row in rows)
    sees = torch.zeros(len(rows), longest, width + longest, dtype=torch.bool)
    sees[:, :, :width] = (torch.arange(width) < lengths.cpu()[:, None])[:, None]
    # of padding too: softmax is undefined for a fully masked row
    sees[:, :, width:].diagonal(dim1=1, dim2=2).fill_(True)
    own = sees[:, :, width:].numpy()
    for b, row in enumerate(rows):
        for number, parent in enumerate(row.parents):
            if parent >= 0:
                own[b, number, :number] |= own[b, parent, :number]
    hidden = torch.zeros(sees.shape, dtype=dtype).masked_fill_(~sees, -torch.inf)
    return hidden.unsqueeze(1).to(lengths.device)
