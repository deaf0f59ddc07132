"""Confidence intervals and tests for measured shares and means. All random draws are seeded."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from trivium.evaluation.tasks.task import Example
from trivium.seeds import generator_for


class Interval(NamedTuple):
    low: float
    high: float


def wilson(successes: int, trials: int, *, confidence: float = 0.95) -> Interval:
    """Return the Wilson interval (1927) of a share. It is valid for few trials and for 0 or all successes."""
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} successes of {trials} trials: a share needs 0 <= successes <= trials >= 1")
    found = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return Interval(float(found.low), float(found.high))


def share_of(correct: Sequence[float], *, confidence: float) -> dict[str, Any]:
    """Return {n, accuracy, interval} of answers. correct: for each question whether its answer is correct, or in which
    share of several draws of the shots it is. The interval is that of n answers."""
    right, count = math.fsum(correct), len(correct)
    interval = list(wilson(round(right), count, confidence=confidence))
    return {"n": count, "accuracy": right / count, "interval": interval}


def by_group(examples: Sequence[Example], correct: Sequence[float], *, confidence: float) -> dict[str, Any]:
    """Return {grouping: {group: {n, accuracy, interval}}}. correct: see `share_of`."""
    found: dict[str, dict[str, list[float]]] = {}
    for example, good in zip(examples, correct, strict=True):
        for name, group in example.groups.items():
            found.setdefault(name, {}).setdefault(group, []).append(good)
    return {
        name: {group: share_of(shares, confidence=confidence) for group, shares in sorted(groups.items())}
        for name, groups in found.items()
    }


def bootstrap_mean(
    values: Sequence[float], *, seed: int, name: str, confidence: float = 0.95, resamples: int = 1000
) -> Interval:
    """Return the percentile bootstrap interval of a mean. `name` keys the random draws."""
    if not len(values):
        raise ValueError("a mean of 0 values has no interval")
    data = np.asarray(values, dtype=np.float64)
    generator = generator_for(seed, "bootstrap", name)
    means = np.asarray([data[generator.integers(len(data), size=len(data))].mean() for _ in range(resamples)])
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def sign_test(positive: int, negative: int) -> float:
    """Return the two-sided p-value of an exact sign test; 1 if there are no signs."""
    if not positive + negative:
        return 1.0
    return float(stats.binomtest(positive, positive + negative, 0.5).pvalue)
