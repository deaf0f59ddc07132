"""What the scores of choices say besides which is largest: how sure, how biased, how far apart.

Legend: n questions, C choices.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Labels = NDArray[np.int64]
BINS = 10  # of sureness
HISTOGRAM_BINS = 24


def softmax(scores: Scores) -> Scores:
    """[n, C] nats -> probabilities over the choices."""
    shifted: Scores = np.exp(scores - scores.max(1, keepdims=True))
    found: Scores = shifted / shifted.sum(1, keepdims=True)
    return found


def calibration_error(scores: Scores, gold: Labels) -> tuple[float, list[dict[str, float]]]:
    """Expected calibration error (Naeini et al. 2015; Guo et al. 2017) over equal bins of the largest probability,
    and each bin that is not empty: {n, sureness, accuracy}."""
    probabilities = softmax(scores)
    sure, good = probabilities.max(1), probabilities.argmax(1) == gold
    which = np.minimum((sure * BINS).astype(int), BINS - 1)
    bins = [
        {
            "n": int((which == b).sum()),
            "sureness": float(sure[which == b].mean()),
            "accuracy": float(good[which == b].mean()),
        }
        for b in range(BINS)
        if (which == b).any()
    ]
    error = sum(b["n"] * abs(b["sureness"] - b["accuracy"]) for b in bins) / len(gold)
    return float(error), bins


def threshold_accuracy(scores: Scores, gold: Labels) -> float | None:
    """Accuracy for two choices when "the first" means a difference above a threshold, which each half of the
    questions takes from the other half; None for more choices or a single question."""
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
    """[inputs without content, C] -> [1, C]: the log of each choice's mean probability over these inputs, which Zhao
    et al. (2021) take before they norm it over the choices. A mean of logs would be theirs for one input only."""
    found: Scores = np.logaddexp.reduce(scores, axis=0, keepdims=True) - np.log(len(scores))
    return found


def contextual(scores: Scores, empty: Scores) -> Scores:
    """Scores corrected by those of inputs without content, [n or 1, C] (Zhao et al. 2021): the log of
    P(choice) / P(choice | no content), each over the choices."""
    return np.log(softmax(scores)) - np.log(softmax(empty))


def histogram(margins: Scores, gold: Labels, labels: Sequence[str]) -> dict[str, Any]:
    """Counts of margins by gold label over common bins: {edges, counts: {label: [...]}}."""
    low, high = float(margins.min()), float(margins.max())
    edges = np.linspace(low, high if high > low else low + 1.0, HISTOGRAM_BINS + 1)
    counts = {label: np.histogram(margins[gold == k], edges)[0].tolist() for k, label in enumerate(labels)}
    return {"edges": edges.tolist(), "counts": counts}


def separation(margins: Scores, first: NDArray[np.bool_]) -> float | None:
    """Probability that a question whose right choice is the first has a larger margin than another (area under the
    ROC curve): 1/2 says that no threshold helps. None when one of the kinds is missing."""
    positive, negative = margins[first], margins[~first]
    if not len(positive) or not len(negative):
        return None
    below = np.searchsorted(np.sort(negative), positive, side="left")
    upto = np.searchsorted(np.sort(negative), positive, side="right")
    return float((below + upto).sum() / 2 / len(positive) / len(negative))


def _best_threshold(margin: Scores, first: NDArray[np.bool_]) -> float:
    """The cut between neighbours with most right; among equals the one nearest to 0."""
    ordered = np.unique(margin)
    cuts = np.concatenate([[ordered[0] - 1.0], (ordered[1:] + ordered[:-1]) / 2, [ordered[-1] + 1.0]])
    right = ((margin[None, :] > cuts[:, None]) == first[None, :]).sum(1)
    best = cuts[right == right.max()]
    return float(best[np.abs(best).argmin()])
