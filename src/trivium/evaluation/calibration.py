"""Calibration, label bias and separation of the scores of choices.

Legend: n questions, C choices.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Labels = NDArray[np.int64]
CONFIDENCE_BINS = 10
HISTOGRAM_BINS = 24


def softmax(scores: Scores) -> Scores:
    """Convert scores [n, C] in nats into probabilities over the choices."""
    shifted: Scores = np.exp(scores - scores.max(1, keepdims=True))
    found: Scores = shifted / shifted.sum(1, keepdims=True)
    return found


def calibration_error(scores: Scores, gold: Labels) -> tuple[float, list[dict[str, float]]]:
    """Return the expected calibration error (Naeini et al. 2015; Guo et al. 2017) and its bins.

    Bins divide the largest probability equally. Each bin that is not empty is {n, sureness, accuracy}.
    """
    probabilities = softmax(scores)
    sure, good = probabilities.max(1), probabilities.argmax(1) == gold
    which = np.minimum((sure * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    bins = [
        {"n": int(mask.sum()), "sureness": float(sure[mask].mean()), "accuracy": float(good[mask].mean())}
        for mask in (which == b for b in np.unique(which))
    ]
    error = sum(b["n"] * abs(b["sureness"] - b["accuracy"]) for b in bins) / len(gold)
    return float(error), bins


def threshold_accuracy(scores: Scores, gold: Labels) -> float | None:
    """Return the accuracy for two choices if "the first" requires a score difference above a threshold.

    Each half of the questions uses the threshold of the other half. None for more choices or a single question.
    """
    if scores.shape[1] != 2 or len(gold) < 2:
        return None
    margin, first = scores[:, 0] - scores[:, 1], gold == 0
    even = np.arange(len(gold)) % 2 == 0
    right = 0
    for here in (even, ~even):
        threshold = _best_threshold(margin[~here], first[~here])
        right += int(((margin[here] > threshold) == first[here]).sum())
    return right / len(gold)


def without_content(scores: Scores) -> Scores:
    """Average the scores of inputs without content: [inputs, C] -> [1, C].

    The result is the log of each choice's mean probability, as Zhao et al. (2021) average before they normalise
    over the choices. A mean of logs would agree with theirs only for a single input.
    """
    found: Scores = np.logaddexp.reduce(scores, axis=0, keepdims=True) - np.log(len(scores))
    return found


def contextual(scores: Scores, empty: Scores) -> Scores:
    """Return log P(choice) / P(choice | no content), each normalised over the choices [n, C] (Zhao et al. 2021)."""
    return np.log(softmax(scores)) - np.log(softmax(empty))


def histogram(margins: Scores, gold: Labels, labels: Sequence[str]) -> dict[str, Any]:
    """Return histograms of the margins by gold label over common bins: {edges, counts: {label: [...]}}."""
    low, high = float(margins.min()), float(margins.max())
    edges = np.linspace(low, high if high > low else low + 1.0, HISTOGRAM_BINS + 1)
    counts = {label: np.histogram(margins[gold == k], edges)[0].tolist() for k, label in enumerate(labels)}
    return {"edges": edges.tolist(), "counts": counts}


def separation(margins: Scores, first: NDArray[np.bool_]) -> float | None:
    """Return the area under the ROC curve of the margins: the probability that a question whose answer is the first
    choice has a larger margin than another question. None if one of the two kinds is missing."""
    positive, negative = margins[first], margins[~first]
    if not len(positive) or not len(negative):
        return None
    below = np.searchsorted(np.sort(negative), positive, side="left")
    upto = np.searchsorted(np.sort(negative), positive, side="right")
    return float((below + upto).sum() / 2 / len(positive) / len(negative))


def _best_threshold(margin: Scores, first: NDArray[np.bool_]) -> float:
    """Return the threshold between neighbouring margins with the highest accuracy; ties go to the one nearest to 0."""
    ordered = np.unique(margin)
    cuts = np.concatenate([[ordered[0] - 1.0], (ordered[1:] + ordered[:-1]) / 2, [ordered[-1] + 1.0]])
    right = ((margin[None, :] > cuts[:, None]) == first[None, :]).sum(1)
    best = cuts[right == right.max()]
    return float(best[np.abs(best).argmin()])
