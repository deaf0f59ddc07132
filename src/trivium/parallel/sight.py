"""Which positions see which, and in what tiles a ring of ranks attends to them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

import numpy as np
import torch

from trivium.parallel.crossing import sent

Tensor = torch.Tensor


class Seen(Enum):
    """What of a tile of queries by keys is seen: all, a triangle (the same positions, in order), or some of it."""

    ALL = auto()
    TRIANGLE = auto()
    SOME = auto()


class Tile(NamedTuple):
    """Queries `here` and keys `there`, places within what each of two ranks holds, of which some pair is seen."""

    here: slice
    there: slice
    seen: Seen


@dataclass(frozen=True)
class Sight:
    """order: the positions [S] that each context rank holds; empty where one holds all, in order. They are numbers of
    the processor, so that an accelerator need not be asked what there is to do.

    documents: [whole sequence, B], the number of the document of every position, or None when packed documents see
    each other. window: how many positions each sees, itself included, or None for all before it.
    """

    order: tuple[np.ndarray, ...]
    documents: Tensor | None
    window: int | None = None
    _placed: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def within(self, window: int | None) -> "Sight":
        """The same through a window."""
        return self if window is None else Sight(self.order, self.documents, window, self._placed)

    def placed(self, rank: int, device: torch.device) -> Tensor:
        """The positions that a rank holds, on a device: sent there once, for all tiles and layers."""
        if rank not in self._placed:
            self._placed[rank] = sent(self.order[rank], device, torch.int64)
        return self._placed[rank]

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        """[B or 1, 1, queries, keys], true where a query sees a key; both are positions."""
        ago = queries[:, None] - keys[None, :]
        seen = (ago >= 0 if self.window is None else (ago >= 0) & (ago < self.window))[None, None]
        if self.documents is not None:
            # In this order in memory, so that the mask is: accelerators' kernels take no other.
            of_query, of_key = (self.documents[x].T.contiguous() for x in (queries, keys))  # B S, B K
            seen = seen & (of_query[:, None, :, None] == of_key[:, None, None, :])
        return seen

    def tiles(self, here: int, there: int) -> Iterator[Tile]:
        """Of one rank's queries and another's keys, by halves; by position alone."""
        for queries in _halves(self.order[here]):
            for keys in _halves(self.order[there]):
                seen = seen_of(self.order[here][queries], self.order[there][keys], self.window)
                if seen is not None:
                    yield Tile(queries, keys, seen)

    def in_reach(self, tile: Tile, here: int, there: int) -> Tile | None:
        """The tile from the first of its keys that one of its queries sees, by position, to the last; None: none."""
        if self.window is None:
            return tile
        queries, keys = self.order[here][tile.here], self.order[there][tile.there]
        seen = np.flatnonzero((keys <= queries.max()) & (keys > queries.min() - self.window))
        if not len(seen):
            return None
        start = tile.there.start
        return tile._replace(there=slice(start + int(seen[0]), start + int(seen[-1]) + 1))


def seen_of(queries: np.ndarray, keys: np.ndarray, window: int | None) -> Seen | None:
    """What positions of queries see of keys' by order and through a window; None: nothing."""
    if queries.max() < keys.min():
        return None
    if window is not None and queries.min() - keys.max() >= window:
        return None
    if window is not None and queries.max() - keys.min() >= window:
        return Seen.SOME
    if queries.min() >= keys.max():
        return Seen.ALL
    same = len(queries) == len(keys) and (queries == keys).all() and (np.diff(queries) > 0).all()
    return Seen.TRIANGLE if same else Seen.SOME


def _halves(order: np.ndarray) -> tuple[slice, ...]:
    middle = len(order) // 2
    return (slice(0, middle), slice(middle, len(order))) if middle else (slice(0, len(order)),)
