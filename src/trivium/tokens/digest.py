"""A hash of a batch that ranks can add up: each hashes the rows it read, and the sum knows nothing of layouts."""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BITS = 32
_MASK = (1 << _BITS) - 1


class Digest(NamedTuple):
    """Sums of the high and the low halves of the hashes of rows; exact in fp64 up to 2^21 rows."""

    high: int
    low: int

    def __str__(self) -> str:
        return f"{self.high & _MASK:08x}{self.low & _MASK:08x}"


NO_ROWS = Digest(0, 0)


def digest(numbers: Iterable[int], inputs: NDArray[np.int64], targets: NDArray[np.int64]) -> Digest:
    """The digest of rows of a batch, each with its sample number: another token, target, place or row changes it.

    inputs, targets: [rows, positions].
    """
    high = low = 0
    # Ids fit 32 bits in every shard; half the bytes are hashed in half the time.
    rows = np.concatenate([inputs, targets], axis=1).astype("<i4")
    for number, row in zip(numbers, rows, strict=True):
        salted = hashlib.blake2b(row, digest_size=8, salt=int(number).to_bytes(8, "little"))
        value = int.from_bytes(salted.digest(), "little")
        high, low = high + (value >> _BITS), low + (value & _MASK)
    return Digest(high, low)
