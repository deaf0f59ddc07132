"""The completions of preference pairs in rows of tokens.

A pair is two documents of one row, the chosen one first. The weights of its targets say which is which: CHOSEN for the
tokens of the chosen completion, REJECTED for those of the rejected one, and 0 for all others.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.errors import DataError

CHOSEN, REJECTED = 1, 2
_REMEDY = "make these tokens from preference pairs, with plan.model.sequence as it is now"


class Completions(NamedTuple):
    """number [sequences, positions]: of the completion that a target belongs to, from 1, and 0 if it belongs to none.
    pairs: their number. The completions of pair n, counted from 0, are 2 n + 1 (chosen) and 2 n + 2 (rejected)."""

    number: NDArray[np.int64]
    pairs: int


def completions_of(weights: NDArray[np.floating], numbers: Sequence[int]) -> Completions:
    """Return the completions of rows with these weights of targets [sequences, positions].

    numbers: of the samples, for messages. Raises DataError for a row that is not made of whole pairs.
    """
    row, _ = counted = np.nonzero(weights)
    codes = weights[counted]
    if (wrong := (codes != CHOSEN) & (codes != REJECTED)).any():
        at = int(np.argmax(wrong))
        raise DataError(
            f"sample {numbers[row[at]]} has a target of weight {codes[at]:g}, and targets of preference pairs have "
            f"{CHOSEN} (chosen), {REJECTED} (rejected) or 0; {_REMEDY}"
        )
    begins = np.ones(len(codes), bool)
    begins[1:] = (codes[1:] != codes[:-1]) | (row[1:] != row[:-1])
    number = np.zeros(weights.shape, np.int64)
    number[counted] = np.cumsum(begins)
    starts, expected = codes[begins], np.resize([CHOSEN, REJECTED], begins.sum())
    ends = np.append(row[begins], -1)
    # In a row of whole pairs the first completion is chosen, and the last one is rejected.
    if (parted := (starts != expected) | ((starts == CHOSEN) & (ends[1:] != ends[:-1]))).any():
        at = int(np.argmax(parted))
        kind, other = ("chosen", "rejected") if starts[at] == CHOSEN else ("rejected", "chosen")
        raise DataError(
            f"sample {numbers[row[begins][at]]} has a {kind} completion without its {other} one: a pair belongs to one "
            f"sample, so that one micro-batch has both; {_REMEDY}"
        )
    return Completions(number, len(starts) // 2)
