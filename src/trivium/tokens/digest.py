"""A layout-independent hash of a batch: every rank hashes the rows that it read, and the hashes are summed."""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BITS = 32
_MASK = (1 << _BITS) - 1


class Digest(NamedTuple):
    """Sums of the high and low halves of the rows' hashes. They are exact in fp64 for up to 2^21 rows."""

    high: int
    low: int

    def __str__(self) -> str:
        return f"{self.high & _MASK:08x}{self.low & _MASK:08x}"


NO_ROWS = Digest(0, 0)


def digest(numbers: Iterable[int], inputs: NDArray[np.int64], targets: NDArray[np.int64]) -> Digest:
    """Return the digest of a batch's rows. It depends on every token, target, position and sample number.

    inputs, targets: [rows, positions].
    """
    high = low = 0
    # Ids of all shards fit into 32 bits, and hashing half the bytes takes half the time.
    rows = np.concatenate([inputs, targets], axis=1).astype("<i4")
    for number, row in zip(numbers, rows, strict=True):
        salted = hashlib.blake2b(row, digest_size=8, salt=int(number).to_bytes(8, "little"))
        value = int.from_bytes(salted.digest(), "little")
        high, low = high + (value >> _BITS), low + (value & _MASK)
    return Digest(high, low)
