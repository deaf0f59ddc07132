"""The keys that each query attends to, and the tiles in which a ring of ranks computes them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from trivium.kernels.crossing import sent

Tensor = torch.Tensor
Kind = TypeVar("Kind")


class Seen(Enum):
    """The visible part of a tile of queries by keys: all, a triangle (the same positions, in order), or some other
    part."""

    ALL = auto()
    TRIANGLE = auto()
    SOME = auto()


class Tile(NamedTuple):
    """Queries `here` and keys `there`, places within what each of two ranks holds, of which some pair is seen."""

    here: slice
    there: slice
    seen: Seen


class Documents(NamedTuple):
    """Packed one after the other, as the kernels of accelerators take them: where each begins in the sequences of a
    micro-batch laid end to end, and where the last ends [documents + 1], int32; and how long the longest is."""

    edges: Tensor
    longest: int


@dataclass(frozen=True)
class Sight:
    """order: the positions [S] that each context rank holds; empty where one holds all, in order.

    starts: [whole sequence, B], the position at which the document of each position starts, or None when packed
    documents see each other. window: how many positions each sees, itself included, or None for all before it.

    All are numbers of the processor, so that an accelerator need not be asked what there is to do.
    """

    order: tuple[np.ndarray, ...]
    starts: np.ndarray | None
    window: int | None = None
    _sent: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)

    def within(self, window: int | None) -> "Sight":
        """Return this object with an attention window; None for no window."""
        return self if window is None else Sight(self.order, self.starts, window, self._sent)

    def placed(self, rank: int, device: torch.device) -> Tensor:
        """The positions that a rank holds, on a device: sent there once, for all tiles and layers."""
        return self._once(rank, lambda: sent(self.order[rank], device, torch.int64))

    def documents(self, device: torch.device) -> Documents:
        """Return the documents of every sequence on a device. They are copied there once, for all layers."""
        return self._once("documents", lambda: _documents(self._starts, device))

    @property
    def _starts(self) -> np.ndarray:
        assert self.starts is not None, "of joined documents nobody asks where they start"
        return self.starts

    def _once(self, name: object, make: Callable[[], Kind]) -> Kind:
        if name not in self._sent:
            self._sent[name] = make()
        found: Kind = self._sent[name]
        return found

    def first_seen(self, queries: np.ndarray) -> np.ndarray:
        """[queries, B or 1]: the first position that each of them sees, in each sequence; negative: all before."""
        window = -1 if self.window is None else queries[:, None] - self.window + 1
        starts = np.zeros((len(queries), 1), np.int64) if self.starts is None else self.starts[queries]
        return np.maximum(starts, window)

    def first_seen_on(self, device: torch.device) -> Tensor:
        """[B or 1, 1, whole sequence, 1], int32: the same of all positions, on a device; of packed documents."""
        every = np.arange(len(self._starts))
        made = lambda: sent(self.first_seen(every).T[:, None, :, None], device, torch.int32)  # noqa: E731
        return self._once(("first", self.window), made)

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        """[B or 1, 1, queries, keys], true where a query sees a key; both are positions."""
        ago = queries[:, None] - keys[None, :]
        if self.starts is not None:
            # In this order in memory, so that the mask is: accelerators' kernels take no other.
            return (ago >= 0) & (self.first_seen_on(queries.device)[:, :, queries] <= keys)
        return (ago >= 0 if self.window is None else (ago >= 0) & (ago < self.window))[None, None]

    def tiles(self, here: int, there: int) -> Iterator[Tile]:
        """Yield the tiles of one rank's queries and another rank's keys in which something is visible, by halves."""
        for queries in _halves(self.order[here]):
            for keys in _halves(self.order[there]):
                first = self.first_seen(self.order[here][queries])
                seen = seen_of(self.order[here][queries], self.order[there][keys], first)
                if seen is not None:
                    yield Tile(queries, keys, seen)

    def in_reach(self, tile: Tile, here: int, there: int) -> Tile | None:
        """The tile from the first of its keys that one of its queries sees, by position, to the last; None: none."""
        if self.window is None and self.starts is None:
            return tile
        queries, keys = self.order[here][tile.here], self.order[there][tile.there]
        first = self.first_seen(queries)
        seen = np.flatnonzero((keys <= queries.max()) & (keys >= first.min()))
        if not len(seen):
            return None
        a, b = int(seen[0]), int(seen[-1]) + 1
        start = tile.there.start
        found = seen_of(queries, keys[a:b], first)
        return None if found is None else Tile(tile.here, slice(start + a, start + b), found)


def seen_of(queries: np.ndarray, keys: np.ndarray, first: np.ndarray) -> Seen | None:
    """Return which part of a tile is visible, from the positions of its queries and keys in order and the first visible
    position of each query [queries, sequences]. Returns None if nothing is visible."""
    if queries.max() < keys.min() or keys.max() < first.min():
        return None
    if first.max() > keys.min():
        return Seen.SOME
    if queries.min() >= keys.max():
        return Seen.ALL
    same = len(queries) == len(keys) and (queries == keys).all() and (np.diff(queries) > 0).all()
    return Seen.TRIANGLE if same else Seen.SOME


def _documents(starts: np.ndarray, device: torch.device) -> Documents:
    positions = np.arange(len(starts))
    begins = np.flatnonzero((starts == positions[:, None]).T)
    edges = np.append(begins, starts.size)
    return Documents(sent(edges, device, torch.int32), int(np.diff(edges).max()))


def _halves(order: np.ndarray) -> tuple[slice, ...]:
    middle = len(order) // 2
    return (slice(0, middle), slice(middle, len(order))) if middle else (slice(0, len(order)),)
