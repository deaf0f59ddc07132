"""The rows of a batch, and a layout-independent hash of them: every rank hashes its own rows, and hashes are summed."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_BITS = 32
_MASK = (1 << _BITS) - 1


class Rows(NamedTuple):
    """Tokens, and for each of them the target and the weight of its loss; each [sequences, positions].

    starts: whether a document begins with each token, where it is known; None: after every end-of-text token.
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    starts: NDArray[np.bool_] | None = None

    @staticmethod
    def of_text(
        text: NDArray[Any], weights: NDArray[Any] | None = None, starts: NDArray[np.bool_] | None = None
    ) -> "Rows":
        """Return the rows in which each token's target is the next one.

        text: token ids [sequences, positions + 1]. weights: of these tokens as targets; None stands for 1. starts:
        whether a document begins with each of these tokens, which then does not count as a target.
        """
        tokens, targets = text[:, :-1], text[:, 1:]
        own = np.ones(targets.shape, np.float32) if weights is None else weights[:, 1:].astype(np.float32)
        if starts is None:
            return Rows(tokens, targets, own)
        return Rows(tokens, targets, own * ~starts[:, 1:], starts[:, :-1])

    def part(self, start: int, stop: int) -> "Rows":
        """Return the rows [start, stop)."""
        return Rows(*(None if field is None else field[start:stop] for field in self))

    @staticmethod
    def joined(parts: Sequence["Rows"]) -> "Rows":
        """Return the rows of several parts, which all say where documents begin, or none does."""
        if len(parts) == 1:
            return parts[0]
        return Rows(*(None if each[0] is None else np.concatenate(each) for each in zip(*parts, strict=True)))


class Digest(NamedTuple):
    """Sums of the high and low halves of the rows' hashes. They are exact in fp64 for up to 2^21 rows."""

    high: int
    low: int

    def __str__(self) -> str:
        return f"{self.high & _MASK:08x}{self.low & _MASK:08x}"


NO_ROWS = Digest(0, 0)


def digest(numbers: Iterable[int], rows: Rows) -> Digest:
    """Return the digest of rows with these sample numbers.

    It depends on every token, target, weight, known start of a document, position and sample number. A row whose
    weights are all 1 is hashed without them.
    """
    high = low = 0
    # Ids of all shards fit into 32 bits, and hashing half the bytes takes half the time.
    ids = np.concatenate([rows.tokens, rows.targets], axis=1).astype("<i4")
    weights = np.ascontiguousarray(rows.weights, "<f4")
    weighted = (weights != 1).any(axis=1).tolist()
    for n, number in enumerate(numbers):
        salted = hashlib.blake2b(ids[n], digest_size=8, salt=int(number).to_bytes(8, "little"))
        if weighted[n]:
            salted.update(weights[n])
        if rows.starts is not None:
            salted.update(np.packbits(rows.starts[n]).tobytes())
        value = int.from_bytes(salted.digest(), "little")
        high, low = high + (value >> _BITS), low + (value & _MASK)
    return Digest(high, low)
