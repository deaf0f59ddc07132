"""How far a measured share or mean may be from the truth; every draw is seeded."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from trivium.seeds import generator_for


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def wilson(successes: int, trials: int, *, confidence: float = 0.95) -> Interval:
    """For a share of successes (Wilson 1927); sensible even at 0 or all successes, and for few trials."""
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(
            f"{successes} successes of {trials} trials: a share needs 0 <= successes <= trials >= 1"
        )
    found = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return Interval(float(found.low), float(found.high))


def bootstrap_mean(
    values: Sequence[float], *, seed: int, name: str, confidence: float = 0.95, resamples: int = 1000
) -> Interval:
    """For a mean: percentiles of the means of resamples of the values; `name` keys the draws."""
    if not len(values):
        raise ValueError("a mean of 0 values has no interval")
    data = np.asarray(values, dtype=np.float64)
    generator = generator_for(seed, "bootstrap", name)
    means = np.asarray([data[generator.integers(len(data), size=len(data))].mean() for _ in range(resamples)])
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def sign_test(positive: int, negative: int) -> float:
    """Exact two-sided probability of a split at least so uneven when both signs are equally likely; 1 for none."""
    if not positive + negative:
        return 1.0
    return float(stats.binomtest(positive, positive + negative, 0.5).pvalue)
