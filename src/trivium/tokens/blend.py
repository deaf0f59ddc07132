"""Data blending: sample n comes from the source with the largest deficit.

As in MT-NLG (section 3.1) and Megatron-LM's blended dataset, sample n comes from argmax_i(w_i (n + 1) - count_i),
the first of equals. Weights are rounded to multiples of 1/65536. After 65536 samples every count then equals its
share, and the choice repeats. One table of that length therefore answers for every n in constant time.
"""

from collections.abc import Mapping
from functools import cached_property
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError

SHARES_PER_PERIOD = 1 << 16


class Blend:
    """An infinite sequence of sources with constant-time access to any index."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """weights: by source, in any unit. A source with weight 0 is never chosen."""
        self.shares = rounded(weights)  # integers by source
        self.sources = tuple(self.shares)
        self.period = sum(self.shares.values())

    def source(self, n: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the source (index into `sources`) of each sample index in `n`."""
        return self._table[np.asarray(n) % self.period]

    def ordinal(self, n: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each sample index in `n` the number of earlier samples from the same source."""
        turns, place = np.divmod(np.asarray(n, dtype=np.int64), self.period)
        shares = np.asarray(list(self.shares.values()), dtype=np.int64)
        return turns * shares[self._table[place]] + self._ordinals[place]

    def place(self, source: int, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample indices of the source's samples with these ordinals, counted from 0."""
        turns, rest = np.divmod(np.asarray(ordinals, dtype=np.int64), list(self.shares.values())[source])
        return turns * self.period + self._places_of[source][rest]

    def counts_after(self, n: int) -> dict[str, int]:
        """Return the number of samples of each source among the first `n`."""
        turns, place = divmod(n, self.period)
        inside = np.bincount(self._table[:place], minlength=len(self.sources))
        return {s: turns * share + int(c) for (s, share), c in zip(self.shares.items(), inside, strict=True)}

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        # Deficits scaled by the period are integers, so ties are not decided by rounding.
        shares = np.asarray(list(self.shares.values()), dtype=np.int64)
        deficits = np.zeros(len(shares), dtype=np.int64)
        chosen = np.empty(self.period, dtype=np.int64)
        for n in range(self.period):
            deficits += shares
            chosen[n] = source = deficits.argmax()
            deficits[source] -= self.period
        return chosen

    @cached_property
    def _places_of(self) -> list[NDArray[np.int64]]:
        return [np.flatnonzero(self._table == source) for source in range(len(self.sources))]

    @cached_property
    def _ordinals(self) -> NDArray[np.int64]:
        ordinals = np.empty(self.period, dtype=np.int64)
        for where in self._places_of:
            ordinals[where] = np.arange(len(where))
        return ordinals


def largest_excess(weights: Mapping[str, float]) -> tuple[str, float]:
    """Return the source whose share exceeds its weight most, by rounding, and the ratio of the two."""
    shares, total = rounded(weights), sum(weights.values())
    period = sum(shares.values())
    excess = {source: share / period / (weights[source] / total) for source, share in shares.items()}
    source = max(excess, key=lambda name: excess[name])
    return source, excess[source]


def rounded(weights: Mapping[str, float], resolution: int = SHARES_PER_PERIOD) -> dict[str, int]:
    """Round weights to integer shares of `resolution` (largest remainder method).

    A positive weight keeps at least one share. The shares are divided by their common divisor and sorted by source.
    Raises DataError for invalid weights or too many sources.
    """
    wrong = {s: w for s, w in weights.items() if not (np.isfinite(w) and w >= 0)}
    if wrong or not sum(weights.values()) > 0:
        raise DataError(f"blend weights must be 0 or more, and one above 0; found {wrong or dict(weights)}")
    positive = {s: w for s, w in sorted(weights.items()) if w > 0}
    if len(positive) > resolution:
        raise DataError(f"{len(positive)} sources cannot be blended; at most {resolution} can")
    total = sum(positive.values())
    exact = {s: w / total * resolution for s, w in positive.items()}
    shares = {s: max(1, int(x)) for s, x in exact.items()}
    # Give the remaining shares to the largest remainders. Take surplus shares, caused by the minimum of 1, from the
    # largest shares.
    order = sorted(exact, key=lambda s: shares[s] - exact[s])
    for k in range(max(0, resolution - sum(shares.values()))):
        shares[order[k % len(order)]] += 1
    largest = [(-share, s) for s, share in shares.items()]  # ties go to the first in alphabetical order
    heapify(largest)
    for _ in range(sum(shares.values()) - resolution):
        share, s = largest[0]
        shares[s] -= 1
        heapreplace(largest, (share + 1, s))
    divisor = int(np.gcd.reduce(list(shares.values())))
    return {s: share // divisor for s, share in shares.items()}
