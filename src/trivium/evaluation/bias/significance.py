"""Permutation tests, bootstrap intervals, effect sizes, and Holm's correction.

All random draws are seeded. The p-value of R permutations is (1 + as extreme) / (1 + R), so it is never 0
(Phipson and Smyth 2010).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.evaluation.bias.config import Draws
from trivium.evaluation.statistics import bootstrap_mean
from trivium.seeds import generator_for

Floats = NDArray[np.float64]


def sign_flips(values: Sequence[float], draws: Draws, name: str) -> float:
    """Return the two-sided p-value of a mean, if each value were equally likely to have either sign."""
    data = np.asarray(values, dtype=np.float64)
    if not len(data):
        raise ValueError(f"{name}: a mean of 0 values cannot be tested")
    generator = generator_for(draws.seed, "sign flips", name)
    extreme = 0
    for rows in draws.blocks(len(data)):
        signs = generator.integers(0, 2, size=(rows, len(data)), dtype=np.int8).astype(np.float64) * 2 - 1
        extreme += _as_extreme(signs @ data, float(data.sum()))
    return (1 + extreme) / (1 + draws.permutations)


def effect_of_mean(values: Sequence[float], draws: Draws, name: str) -> dict[str, Any]:
    """Return the bootstrap interval of a mean, the p-value of sign flips, and Cohen's d (None without deviation)."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    seed, _, resamples, confidence = draws
    interval = bootstrap_mean(values, seed=seed, name=name, confidence=confidence, resamples=resamples)
    return {
        "interval": list(interval),
        "permutation_p": sign_flips(values, draws, name),
        "effect_size": float(np.mean(values)) / deviation if deviation > 0 else None,
    }


class Texts(NamedTuple):
    """A quantity by text [texts]: its sum, the number of summed items, whether the text is in the group, its stratum.

    A mean is sum(sums) / sum(counts). Full texts are permuted, because items within a text are not independent.
    """

    sums: Floats
    counts: Floats
    inside: NDArray[np.bool_]
    stratum: NDArray[np.int64]

    def differences(self, inside: Floats) -> Floats:
        """Map labels [draws, texts] of 0 and 1 to the mean inside minus the mean outside [draws]; 0 if one is empty."""
        sums, counts = inside @ self.sums, inside @ self.counts
        rest, rest_counts = self.sums.sum() - sums, self.counts.sum() - counts
        both = (counts > 0) & (rest_counts > 0)
        found: Floats = np.where(both, sums / np.maximum(counts, 1) - rest / np.maximum(rest_counts, 1), 0.0)
        return found

    def resampled(self, inside: NDArray[np.bool_], draws: Draws, name: str) -> Floats:
        """Return the mean of these texts over resamples of them [draws]; NaN for resamples without items."""
        generator = generator_for(draws.seed, "bootstrap ratio", name)
        sums, counts = self.sums[inside], self.counts[inside]
        found = np.full(draws.resamples, np.nan)
        for draw in range(draws.resamples if len(sums) else 0):
            chosen = generator.integers(len(sums), size=len(sums))
            if counted := counts[chosen].sum():
                found[draw] = sums[chosen].sum() / counted
        return found

    def effect_size(self) -> float | None:
        """Return Cohen's d, the difference of the two groups' means over the pooled standard deviation of texts."""
        used = self.counts > 0
        means = self.sums[used] / self.counts[used]
        one, other = means[self.inside[used]], means[~self.inside[used]]
        if len(one) < 2 or len(other) < 2:
            return None
        squares = (len(one) - 1) * one.var(ddof=1) + (len(other) - 1) * other.var(ddof=1)
        deviation = math.sqrt(squares / (len(one) + len(other) - 2))
        return float(one.mean() - other.mean()) / deviation if deviation > 0 else None


def label_exchange(
    statistic: Callable[[Floats], Floats],
    inside: NDArray[np.bool_],
    stratum: NDArray[np.int64],
    draws: Draws,
    name: str,
) -> tuple[float, float]:
    """Return the statistic, and the two-sided p-value if group labels were exchangeable within each stratum.

    statistic: maps labels [draws, texts] of 0 or 1 to [draws].
    """
    generator = generator_for(draws.seed, "label exchange", name)
    found = float(statistic(inside[None].astype(np.float64))[0])
    order = np.argsort(stratum, kind="stable")
    strata = np.split(order, np.flatnonzero(np.diff(stratum[order])) + 1)
    extreme = 0
    for rows in draws.blocks(len(inside)):
        labels = np.empty((rows, len(inside)))
        for members in strata:
            tiled = np.tile(inside[members].astype(np.float64), (rows, 1))
            labels[:, members] = generator.permuted(tiled, axis=1)
        extreme += _as_extreme(statistic(labels), found)
    return found, (1 + extreme) / (1 + draws.permutations)


def percentiles(values: Floats, confidence: float) -> list[float] | None:
    """Return the central interval with this share of the values, ignoring NaN; None if all are NaN."""
    known = values[~np.isnan(values)]
    tail = (1 - confidence) / 2
    return [float(bound) for bound in np.quantile(known, [tail, 1 - tail])] if len(known) else None


def holm(chances: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple tests (Holm 1979)."""
    order = sorted(range(len(chances)), key=lambda k: chances[k])
    corrected, highest = [0.0] * len(chances), 0.0
    for rank, k in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - rank) * chances[k]))
        corrected[k] = highest
    return corrected


def _as_extreme(drawn: Floats, found: float) -> int:
    # The tolerance counts permutations as equal that only sum in another order.
    return int((np.abs(drawn) >= abs(found) - 1e-9 * max(1.0, abs(found))).sum())
