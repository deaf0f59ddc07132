"""Samples as the trainer takes them: what the model reads, and what it should have said."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.tokens.samples import TokenDataset


class BatchArrays(NamedTuple):
    """Legend: B sequences, S positions. The target at a position is the input at the next one."""

    inputs: NDArray[np.int64]  # B S
    targets: NDArray[np.int64]  # B S


def batch_arrays(dataset: TokenDataset, first: int, count: int) -> BatchArrays:
    """Samples [first, first + count) as inputs and targets, each [count, sequence]."""
    tokens = dataset.samples(range(first, first + count))
    return BatchArrays(np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:]))
