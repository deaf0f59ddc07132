"""How well the frequencies of single tokens alone predict a text: the mark a language model has to beat."""

import numpy as np
from numpy.typing import NDArray


def unigram_entropy(train_counts: NDArray[np.int64], validation_counts: NDArray[np.int64]) -> float:
    """Nats per validation token under the training frequencies, each count raised by one.

    Both: [vocabulary], how often each id occurs in a text.
    """
    nats = -np.log(add_one(train_counts))
    return float((nats * validation_counts).sum() / validation_counts.sum())


def entropy(counts: NDArray[np.int64]) -> float:
    """Nats per token of a text's own frequencies: no unigram prediction of that text can be better."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def add_one(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Probability of each id after raising every count by one (Laplace)."""
    raised = np.asarray(counts, dtype=np.float64) + 1.0
    probabilities: NDArray[np.float64] = raised / raised.sum()
    return probabilities
