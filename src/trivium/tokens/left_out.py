"""Samples that are skipped by a rewound training. They are recorded, so that the order remains a pure function.

A *place* is a position in the infinite order of samples that seed and blend define. A sample's *number* counts only
the places that are not skipped. If nothing is skipped, both are equal.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
SKIPPED = -1  # the number of a skipped place


class Gap(NamedTuple):
    """The places [first, stop)."""

    first: int
    stop: int


class LeftOut:
    """Skipped ranges of places, kept sorted, disjoint and non-empty."""

    def __init__(self, gaps: Iterable[tuple[int, int]] = ()) -> None:
        joined: list[Gap] = []
        for first, stop in sorted((int(a), int(b)) for a, b in gaps if a < b):
            if joined and first <= joined[-1].stop:
                joined[-1] = Gap(joined[-1].first, max(stop, joined[-1].stop))
            else:
                joined.append(Gap(first, stop))
        self.gaps = tuple(joined)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeftOut) and self.gaps == other.gaps

    def __hash__(self) -> int:
        return hash(self.gaps)

    def places(self, numbers: Integers) -> Integers:
        """Return the place of each sample number."""
        numbers = np.asarray(numbers, dtype=np.int64)
        return numbers + self._lost[np.searchsorted(self._at, numbers, side="right")]

    def numbers(self, places: Integers) -> Integers:
        """Return the number of the sample at each place, or SKIPPED."""
        places = np.asarray(places, dtype=np.int64)
        before = np.searchsorted(self._firsts, places, side="right")
        inside = (before > 0) & (places < np.append(0, self._stops)[before])
        return np.where(inside, SKIPPED, places - self._lost[before])

    def without(self, first: int, stop: int) -> "LeftOut":
        """Return these gaps plus the current places of sample numbers [first, stop)."""
        places = self.places(np.arange(first, stop))
        return LeftOut([*self.gaps, *((int(p), int(p) + 1) for p in places)])

    def before(self, number: int) -> tuple[Gap, ...]:
        """Return the gaps that lie before the first `number` samples end."""
        return tuple(gap for gap, at in zip(self.gaps, self._at, strict=True) if at < number)

    @cached_property
    def _firsts(self) -> Integers:
        return np.asarray([gap.first for gap in self.gaps], dtype=np.int64)

    @cached_property
    def _stops(self) -> Integers:
        return np.asarray([gap.stop for gap in self.gaps], dtype=np.int64)

    @cached_property
    def _lost(self) -> Integers:
        """Cumulative skipped places: before the first gap, the second, …, and after the last."""
        return np.concatenate([[0], np.cumsum(self._stops - self._firsts)]).astype(np.int64)

    @cached_property
    def _at(self) -> Integers:
        """The sample number that follows each gap."""
        return self._firsts - self._lost[:-1]


NOTHING = LeftOut()
