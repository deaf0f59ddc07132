"""Unigram entropy: the loss of predicting each token by its frequency alone, which a language model has to beat."""

import numpy as np
from numpy.typing import NDArray


def unigram_entropy(train_counts: NDArray[np.int64], validation_counts: NDArray[np.int64]) -> float:
    """Return nats per validation token under the training frequencies with add-one smoothing.

    Both arguments are counts of ids [vocabulary].
    """
    nats = -np.log(add_one(train_counts))
    return float((nats * validation_counts).sum() / validation_counts.sum())


def entropy(counts: NDArray[np.int64]) -> float:
    """Return nats per token under the text's own frequencies, the minimum of any unigram prediction."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def add_one(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probability of each id with add-one (Laplace) smoothing."""
    raised = np.asarray(counts, dtype=np.float64) + 1.0
    probabilities: NDArray[np.float64] = raised / raised.sum()
    return probabilities
