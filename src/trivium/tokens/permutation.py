"""Keyed permutations of any size that need constant time and memory per position, instead of a stored shuffle.

The permutation is a balanced Feistel network on the smallest even number of bits that can represent `size`. Results
outside of the range are mapped again until they fall inside (cycle walking), which preserves the bijection. Unlike a
shuffle by a library's generator, the order does not depend on the version of any library.
"""

from collections.abc import Callable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from trivium.seeds import seed_for

FEISTEL_ROUNDS = 6
Network = Callable[[NDArray[np.uint64], NDArray[np.uint64]], NDArray[np.uint64]]  # values, keys


class Permutation:
    """A permutation of range(size), keyed by a root seed and names. `p[j]` accepts an array of positions."""

    def __init__(self, size: int, root: int, *names: str | int) -> None:
        if size < 1:
            raise ValueError(f"a permutation of {size} things: at least 1 is needed")
        self.size = size
        self._half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        # [rounds, positions], or [rounds, 1] for all positions
        self._keys = np.array([[seed_for(root, *names, r)] for r in range(FEISTEL_ROUNDS)], np.uint64)

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the value at each position in [0, size)."""
        return self._walk(positions, self._through)

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each value in [0, size)."""
        return self._walk(values, self._backwards)

    @staticmethod
    def each(
        orders: Sequence["Permutation"], which: NDArray[np.intp], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the value at each position of its own permutation, `orders[which]`; all must have the same size.

        Sources with few windows have thousands of epochs in a block, whose permutations are thus looked up at once.
        """
        together = copy(orders[0])
        together._keys = np.concatenate([order._keys for order in orders], axis=1)[:, which]
        return together[positions]

    def _walk(self, given: NDArray[np.int64], network: Network) -> NDArray[np.int64]:
        given = np.asarray(given)
        if given.size and not 0 <= given.min() <= given.max() < self.size:
            raise IndexError(f"{given.min()}..{given.max()} in a permutation of {self.size}")
        values = network(given.astype(np.uint64).ravel(), self._keys)
        outside = np.flatnonzero(values >= self.size)
        while outside.size:
            values[outside] = network(values[outside], self._keys[:, outside % self._keys.shape[1]])
            outside = outside[values[outside] >= self.size]
        return values.astype(np.int64).reshape(given.shape)

    def _through(self, values: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half, values & self._mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & self._mask)
        return (left << self._half) | right

    def _backwards(self, values: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half, values & self._mask
        for key in keys[::-1]:
            left, right = right ^ (_mix(left ^ key) & self._mask), left
        return (left << self._half) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # The finaliser of splitmix64 (Steele, Lea and Flood 2014); products wrap at 64 bits intentionally.
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
