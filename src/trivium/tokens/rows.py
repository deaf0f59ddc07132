"""The rows of a batch, and a layout-independent hash of them: every rank hashes its own rows, and hashes are summed."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_BITS = 32
_MASK = (1 << _BITS) - 1
_NOTHING: Mapping[str, NDArray[Any]] = MappingProxyType({})


class Rows(NamedTuple):
    """Tokens, and for each of them the target and the weight of its loss; each [sequences, positions].

    starts: whether a document begins with each token, where it is known; None: after every end-of-text token. beside:
    what is stored beside the tokens about each target, by name; each [sequences, positions, …].
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32 | np.float64]
    starts: NDArray[np.bool_] | None = None
    beside: Mapping[str, NDArray[Any]] = _NOTHING

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
        here = slice(start, stop)
        starts = None if self.starts is None else self.starts[here]
        beside = {name: x[here] for name, x in self.beside.items()}
        return Rows(self.tokens[here], self.targets[here], self.weights[here], starts, beside)

    @staticmethod
    def joined(parts: Sequence["Rows"]) -> "Rows":
        """Return the rows of several parts, which all say where documents begin, or none does."""
        if len(parts) == 1:
            return parts[0]
        tokens = np.concatenate([part.tokens for part in parts])
        targets = np.concatenate([part.targets for part in parts])
        weights = np.concatenate([part.weights for part in parts])
        starts = [part.starts for part in parts if part.starts is not None]
        beside = {name: np.concatenate([part.beside[name] for part in parts]) for name in parts[0].beside}
        return Rows(tokens, targets, weights, np.concatenate(starts) if starts else None, beside)


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
