"""Paired permutation tests of the difference between two judges.

Under the null hypothesis the two judges are exchangeable on every segment, so each permutation swaps their scores on
a random half of the segments, for all systems together (PERM-BOTH of Deutsch et al. 2021). Judges have different
scales: scores are standardised first, and replaced by their ranks for rank correlations.

Legend: S systems, N segments, B permutations.
"""

from typing import Any

import numpy as np
from scipy import stats

from trivium.evaluation.judges.agreement import (
    Floats,
    flips,
    kendall,
    measures,
    normal_p,
    pairs_of,
    segment_correlations,
    tie_calibration,
)

MAX_TAU_ITEMS = 20_000_000  # over all permutations, each of which computes tau again; there are at least 100


def compare(human: Floats, one: Floats, other: Floats, *, seed: int, permutations: int) -> dict[str, dict[str, Any]]:
    """Return for each measure the difference of the two judges and its two-sided p-value, over the items that have
    all three scores; None where it is undefined."""
    there = np.isfinite(human) & np.isfinite(one) & np.isfinite(other)
    human, one, other = (np.where(there, scores, np.nan) for scores in (human, one, other))
    ones = np.ones((1, human.shape[1]))
    values = [measures(human, judge, seed)(ones) for judge in (one, other)]
    signs = flips(human.shape[1], permutations, seed, "permutations")
    null = {
        **_of_systems(human, _standard(one), _standard(other), signs),
        **_of_segments(human, one, other, signs),
        **_of_items(human, one, other, signs),
    }
    found = {}
    for name in values[0]:
        difference = float(values[0][name][0] - values[1][name][0])
        known = np.isfinite(difference)
        found[name] = {
            "difference": difference if known else None,
            "p": _p_value(difference, null[name]) if known and name in null else None,
        }
    return found


def _p_value(difference: float, null: Floats) -> float:
    """Return how often permutations give as large a difference; the observed order counts as one of them."""
    known = null[np.isfinite(null)]
    return float((1 + (np.abs(known) >= abs(difference) - 1e-12).sum()) / (1 + len(known)))


def _standard(scores: Floats) -> Floats:
    there = scores[np.isfinite(scores)]
    spread = float(there.std()) if len(there) else 0.0
    return (scores - (there.mean() if len(there) else 0.0)) / (spread or 1.0)


def _ranked(scores: Floats) -> Floats:
    there = np.isfinite(scores)
    found = np.full(scores.shape, np.nan)
    found[there] = stats.rankdata(scores[there])
    return _standard(found)


def _sums(one: Floats, other: Floats, signs: Floats) -> tuple[Floats, Floats]:
    """Return the sums over segments of two matrices [K, N] after each permutation, [B, K] each."""
    a, b = np.nan_to_num(one), np.nan_to_num(other)
    moved = ((1 - signs) / 2) @ (b - a).T
    return a.sum(1) + moved, b.sum(1) - moved


def _of_systems(human: Floats, one: Floats, other: Floats, signs: Floats) -> dict[str, Floats]:
    """Return the null distributions of both accuracies of systems; the soft one by the normal approximation."""
    i, j = np.triu_indices(len(human), 1)
    if not len(i):
        return {}
    count = np.isfinite(one).sum(1)
    known = (count[i] > 0) & (count[j] > 0)

    def order(sums: Floats) -> Floats:
        means = sums / np.maximum(count, 1)
        return np.asarray(np.sign(np.round(means[:, i] - means[:, j], 12)))

    h = order(np.nan_to_num(human).sum(1)[None])
    hard = [((order(sums) == h) & known).sum(1) / max(known.sum(), 1) for sums in _sums(one, other, signs)]
    differences = [scores[i] - scores[j] for scores in (human, one, other)]
    of_human = normal_p(np.nansum(differences[0], 1), np.nansum(differences[0] ** 2, 1))
    totals, squares = (_sums(differences[1] ** power, differences[2] ** power, signs) for power in (1, 2))
    paired = np.isfinite(differences[0]).any(1)
    distances = [np.abs(normal_p(t, s) - of_human)[:, paired] for t, s in zip(totals, squares, strict=True)]
    soft = [1 - d.sum(1) / max(int(paired.sum()), 1) for d in distances]
    return {"system_accuracy": hard[0] - hard[1], "soft_accuracy": soft[0] - soft[1]}


def _of_segments(human: Floats, one: Floats, other: Floats, signs: Floats) -> dict[str, Floats]:
    """Return the null distributions of means over segments: a swap changes the sign of a segment's difference. Each
    judge keeps the threshold of ties that is best for it."""
    found = {}
    by_segment = [
        {
            **{f"{name}_by_segment": values for name, values in segment_correlations(human, judge).items()},
            "segment_accuracy": pairs_of(human, judge).by_segment(tie_calibration(human, judge).threshold),
        }
        for judge in (one, other)
    ]
    for name in by_segment[0]:
        difference = by_segment[0][name] - by_segment[1][name]
        here = np.isfinite(difference)
        if here.any():
            found[name] = signs[:, here] @ difference[here] / here.sum()
    return found


def _of_items(human: Floats, one: Floats, other: Floats, signs: Floats) -> dict[str, Floats]:
    """Return the null distributions of correlations over all items."""
    found = {}
    for name, transform in (("pearson", _standard), ("spearman", _ranked)):
        h, a, b = transform(human), transform(one), transform(other)
        count = np.isfinite(h).sum()
        products = [s.sum(1) / count for s in _sums(a * h, b * h, signs)]
        means = [s.sum(1) / count for s in _sums(a, b, signs)]
        squares = [s.sum(1) / count for s in _sums(a**2, b**2, signs)]
        with np.errstate(divide="ignore", invalid="ignore"):
            r = [p / np.sqrt(q - m**2) for p, m, q in zip(products, means, squares, strict=True)]
        found[name] = r[0] - r[1]
    few = max(100, MAX_TAU_ITEMS // max(int(np.isfinite(human).sum()), 1))
    found["tau_b"], found["tau_c"] = _taus(human, _ranked(one), _ranked(other), signs[:few])
    return found


def _taus(human: Floats, one: Floats, other: Floats, signs: Floats) -> tuple[Floats, Floats]:
    there = np.isfinite(human)
    h = np.unique(human[there], return_inverse=True)[1]
    both = np.unique(np.stack([one[there], other[there]]), return_inverse=True)[1].reshape(2, -1)
    segment = np.nonzero(there)[1]
    found = np.empty((len(signs), 2))
    for number, row in enumerate(signs):
        swap = row[segment] < 0
        taus = np.asarray([kendall(h, np.where(swap, both[1 - k], both[k])) for k in (0, 1)])
        found[number] = taus[0] - taus[1]
    return found[:, 0], found[:, 1]
