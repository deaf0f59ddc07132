"""Agreement of a judge's scores with human scores.

Legend: S systems, N segments, K = S (S - 1) / 2 pairs of systems, B resamples or permutations. A matrix of scores is
[S, N], with NaN where a score is missing; an item counts where both matrices have one.

Every measure takes weights [B, N], the number of times that each segment occurs, and returns a value for each row.
Ones give the measure itself, and counts of draws with replacement give its bootstrap distribution. The value is NaN
if the measure is undefined, such as a correlation with a constant.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from trivium.seeds import generator_for

Floats = NDArray[np.float64]
Measures = Callable[[Floats], dict[str, Floats]]

CORRELATIONS = ("tau_b", "tau_c", "spearman", "pearson")
EXACT_SEGMENTS = 10  # most segments of which all 2^10 sign flips are enumerated; more are sampled
TABLE_CELLS = 32  # cells per item up to which a table of counts is faster than sorting
BLOCK_ELEMENTS = 1 << 22  # most elements of a temporary array
NAMES = {
    "system_accuracy": "pairwise accuracy of systems",
    "soft_accuracy": "soft pairwise accuracy of systems",
    "segment_accuracy": "accuracy with calibrated ties, by segment",
    "tau_b": "Kendall's tau b",
    "tau_c": "Kendall's tau c",
    "spearman": "Spearman",
    "pearson": "Pearson",
    "tau_b_by_segment": "Kendall's tau b, by segment",
    "tau_c_by_segment": "Kendall's tau c, by segment",
    "spearman_by_segment": "Spearman, by segment",
    "pearson_by_segment": "Pearson, by segment",
}
RELATIVE_ROUNDING = 1e-9  # two sums of the same numbers in different order count as equal up to this


class Calibration(NamedTuple):
    """Accuracy by the threshold below which two scores of a judge count as a tie (Deutsch et al. 2023)."""

    thresholds: Floats
    accuracies: Floats
    threshold: float  # the smallest with the highest accuracy
    accuracy: float


class Pairs(NamedTuple):
    """Pairs of systems on the same segment, those with all four scores, in order of the judge's difference.

    correct: whether human and judge agree, ties included. tied: whether the human scores are equal, so that a tie of
    the judge would be correct. counts: pairs of each segment [N].
    """

    difference: Floats
    correct: NDArray[np.bool_]
    tied: NDArray[np.bool_]
    segment: NDArray[np.int64]
    counts: Floats

    def changes(self, weights: Floats) -> Floats:
        """Return the change of the weighted sum of accuracies as each pair in turn becomes a tie."""
        change = (self.tied.astype(np.float64) - self.correct) * (weights / np.maximum(self.counts, 1))[self.segment]
        return np.asarray(change.cumsum())

    def by_segment(self, threshold: float) -> Floats:
        """Return each segment's accuracy with this threshold [N], NaN where a segment has no pairs."""
        right = np.where(self.difference <= threshold, self.tied, self.correct).astype(np.float64)
        return _ratio(np.bincount(self.segment, right, len(self.counts)).astype(np.float64), self.counts)

    def ends(self) -> NDArray[np.int64]:
        """Return the last position of each group of equal differences above 0, which become ties together."""
        last = np.append(np.flatnonzero(np.diff(self.difference)), len(self.difference) - 1).astype(np.int64)
        return last[self.difference[last] > 0] if len(self.difference) else last[:0]


def measures(human: Floats, judge: Floats, seed: int) -> Measures:
    """Return the function that computes all measures by name: those over systems, those of all items, and means of
    those of each segment."""
    judge = np.where(np.isfinite(human), judge, np.nan)
    human = np.where(np.isfinite(judge), human, np.nan)
    by_segment, pairs = segment_correlations(human, judge), pairs_of(human, judge)

    def measure(weights: Floats) -> dict[str, Floats]:
        return {
            "system_accuracy": system_accuracy(human, judge, weights),
            "soft_accuracy": soft_accuracy(human, judge, weights, seed),
            "segment_accuracy": segment_accuracy(pairs, weights),
            **dict(zip(CORRELATIONS, correlations(human, judge, weights).T, strict=True)),
            **{f"{name}_by_segment": _mean(values, weights) for name, values in by_segment.items()},
        }

    return measure


def _mean(values: Floats, weights: Floats) -> Floats:
    """Return the weighted mean over the segments that have a value."""
    here = np.isfinite(values)
    return _ratio(weights @ np.where(here, values, 0.0), weights @ here.astype(np.float64))


def resamples(segments: int, count: int, seed: int, *names: str) -> Iterator[Floats]:
    """Yield blocks of weights [≤ B, N]: in each row, how often each of N draws with replacement was a segment."""
    generator = generator_for(seed, "judges", *names)
    rows = max(1, BLOCK_ELEMENTS // max(segments, 1))
    for begin in range(0, count, rows):
        size = min(rows, count - begin)
        drawn = generator.integers(segments, size=(size, segments)) + segments * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * segments).reshape(size, segments).astype(np.float64)


def flips(segments: int, count: int, seed: int, *names: str) -> Floats:
    """Return signs [B, N]: all combinations if N is at most EXACT_SEGMENTS, otherwise `count` random rows."""
    if segments <= EXACT_SEGMENTS:
        bits = np.arange(1 << segments)[:, None] >> np.arange(segments)
        return np.asarray(1.0 - 2.0 * (bits & 1), np.float64)
    generator = generator_for(seed, "judges", *names)
    return generator.integers(0, 2, size=(count, segments)).astype(np.float64) * 2 - 1


def system_accuracy(human: Floats, judge: Floats, weights: Floats) -> Floats:
    """Return the share of pairs of systems that the judge's means order as the human means do, ties included
    (Kocmi et al. 2021)."""
    there = np.isfinite(human) & np.isfinite(judge)
    count = weights @ there.T.astype(np.float64)
    means = [_ratio(weights @ np.where(there, scores, 0.0).T, count) for scores in (human, judge)]
    i, j = np.triu_indices(len(human), 1)
    of_human, of_judge = (m[:, i] - m[:, j] for m in means)
    known = np.isfinite(of_human) & np.isfinite(of_judge)
    same = known & (_sign(of_human, means[0]) == _sign(of_judge, means[1]))
    return _ratio(same.sum(1).astype(np.float64), known.sum(1).astype(np.float64))


def _sign(difference: Floats, means: Floats) -> Floats:
    """Return the signs of differences, 0 for those that rounding of the means explains."""
    size = np.nanmax(np.abs(means), initial=0.0)
    return np.sign(np.where(np.abs(difference) <= RELATIVE_ROUNDING * size, 0.0, difference))


def soft_accuracy(human: Floats, judge: Floats, weights: Floats, seed: int, permutations: int = 1000) -> Floats:
    """Return the soft pairwise accuracy (Thompson et al. 2024): 1 minus the mean difference of two p-values.

    A pair of systems has a p-value by the human scores and one by the judge's: how often random sign flips of the
    segments' differences give a total at least as large. Weights that are not all 1 use the normal approximation of
    this distribution, because resamples would each need their own flips.
    """
    i, j = np.triu_indices(len(human), 1)
    if not len(i):
        return np.full(len(weights), np.nan)
    exact = bool((weights == 1).all())
    of_human, known = (p_values if exact else _normal_p_values)(human[i] - human[j], weights, seed, permutations)
    of_judge, _ = (p_values if exact else _normal_p_values)(judge[i] - judge[j], weights, seed, permutations)
    distance = np.where(known, np.abs(of_human - of_judge), 0.0).sum(1)
    return 1 - _ratio(distance, known.sum(1).astype(np.float64))


def p_values(difference: Floats, weights: Floats, seed: int, permutations: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the one-sided p-values of pairs [1, K] by sign flips of their differences [K, N], and whether a pair has
    any segment. All pairs use the same flips."""
    del weights
    there = np.isfinite(difference)
    values = np.where(there, difference, 0.0)
    total, pairs, segments = values.sum(1), *values.shape
    exact = segments <= EXACT_SEGMENTS
    null = np.zeros((1 << segments if exact else permutations, pairs))
    width = segments if exact else max(1, BLOCK_ELEMENTS // permutations)
    for begin in range(0, segments, width):
        block = values[:, begin : begin + width]
        null += flips(segments if exact else block.shape[1], permutations, seed, "flips", str(begin)) @ block.T
    slack = RELATIVE_ROUNDING * np.abs(values).sum(1)
    return np.asarray((null >= total - slack).mean(0))[None], np.asarray(there.any(axis=1))[None]


def _normal_p_values(
    difference: Floats, weights: Floats, seed: int, permutations: int
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the p-values [B, K] of the normal distribution that has the variance of the sign flips."""
    del seed, permutations
    there = np.isfinite(difference)
    values = np.where(there, difference, 0.0)
    return normal_p(weights @ values.T, weights @ (values**2).T), (weights @ there.T.astype(np.float64)) > 0


def normal_p(total: Floats, squares: Floats) -> Floats:
    """Return the probability that flips give at least `total`. Without any difference it is 1, as by enumeration."""
    some = squares > 0
    found = stats.norm.sf(np.where(some, total, 0.0) / np.sqrt(np.where(some, squares, 1.0)))
    return np.asarray(np.where(some, found, 1.0))


def rounded(values: Floats, scores: Floats) -> Floats:
    """Return values rounded to ten digits of the largest of `scores`. Equal decimal fractions then are equal numbers,
    in whatever way they were added up or subtracted."""
    largest = float(np.nanmax(np.abs(scores), initial=0.0))
    return np.round(values, min(9 - math.floor(math.log10(largest)), 300)) if largest else values


def pairs_of(human: Floats, judge: Floats) -> Pairs:
    """Return all pairs of systems on each segment, ordered by the judge's difference."""
    segments = human.shape[1]
    parts: list[tuple[Floats, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]] = []
    for i in range(len(human) - 1):
        of_human, of_judge = (rounded(scores[i] - scores[i + 1 :], scores) for scores in (human, judge))
        there = np.isfinite(of_human) & np.isfinite(of_judge)
        h, m = of_human[there], of_judge[there]
        parts.append((np.abs(m), np.sign(h) == np.sign(m), h == 0, np.nonzero(there)[1]))
    if not parts:
        none = np.zeros(0, np.bool_)
        return Pairs(np.zeros(0), none, none, np.zeros(0, np.int64), np.zeros(segments))
    difference, correct, tied, segment = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(difference, kind="stable")
    counts = np.bincount(segment, minlength=segments).astype(np.float64)
    return Pairs(difference[order], correct[order], tied[order], segment[order], counts)


def tie_calibration(human: Floats, judge: Floats) -> Calibration:
    """Return the accuracy on pairs of systems by threshold: the mean over segments of the share of pairs that are
    ordered alike or tied in both. Segments without a pair do not count."""
    pairs = pairs_of(human, judge)
    ones = np.ones(human.shape[1])
    thresholds, accuracies = np.append(0.0, pairs.difference[pairs.ends()]), _accuracies(pairs, ones)
    best = _first_of_the_highest(accuracies)
    return Calibration(thresholds, accuracies, float(thresholds[best]), float(accuracies[best]))


def segment_accuracy(pairs: Pairs, weights: Floats) -> Floats:
    """Return the accuracy with ties on pairs of systems, with the threshold that is best for each row of weights."""
    return np.asarray([np.max(_accuracies(pairs, row)) for row in weights])


def _accuracies(pairs: Pairs, weights: Floats) -> Floats:
    total = float(weights @ (pairs.counts > 0))
    if not total:
        return np.asarray([np.nan])
    base = float(weights @ np.nan_to_num(pairs.by_segment(-1.0)))
    return np.append(base, base + pairs.changes(weights)[pairs.ends()]) / total


def _first_of_the_highest(values: Floats) -> int:
    return int(np.argmax(values >= np.max(values) - RELATIVE_ROUNDING)) if np.isfinite(values).all() else 0


def correlations(human: Floats, judge: Floats, weights: Floats) -> Floats:
    """Return Kendall's tau b and c, Spearman's and Pearson's correlation over all items [B, 4]."""
    there = np.isfinite(human) & np.isfinite(judge)
    segment = np.nonzero(there)[1]
    x, y = human[there], judge[there]
    codes = [np.unique(v, return_inverse=True)[1] for v in (x, y)]  # integers sort faster
    found = np.full((len(weights), 4), np.nan)
    for number, row in enumerate(weights):
        chosen = np.repeat(np.arange(len(segment)), row[segment].astype(np.int64))
        if len(chosen) > 1:
            a, b = codes[0][chosen], codes[1][chosen]
            found[number] = *kendall(a, b), pearson(_ranks(a), _ranks(b)), pearson(x[chosen], y[chosen])
    return found


def kendall(a: NDArray[np.int64], b: NDArray[np.int64]) -> tuple[float, float]:
    """Return tau b and tau c of two sequences of integers from 0 on."""
    levels = [np.bincount(v) for v in (a, b)]
    fewest = min(int((level > 0).sum()) for level in levels)
    if fewest < 2:
        return np.nan, np.nan
    n = len(a)
    untied = [n * (n - 1) // 2 - int((level * (level - 1) // 2).sum()) for level in levels]
    size = np.sqrt(float(untied[0])) * np.sqrt(float(untied[1]))
    if len(levels[0]) * len(levels[1]) <= TABLE_CELLS * n:
        surplus = float(_surplus(a, b, (len(levels[0]), len(levels[1]))))
    else:  # in n log n
        surplus = float(stats.kendalltau(a, b, method="asymptotic").statistic) * size
    return surplus / size, 2 * surplus / n**2 * fewest / (fewest - 1)


def _surplus(a: NDArray[np.int64], b: NDArray[np.int64], shape: tuple[int, int]) -> int:
    """Return the number of concordant pairs minus that of discordant ones, from a table of counts."""
    table = np.bincount(a * shape[1] + b, minlength=shape[0] * shape[1]).reshape(shape)
    lower = table.cumsum(0) - table  # by column, of all rows before
    left = lower.cumsum(1)
    return int((table * (left - lower - (left[:, -1:] - left))).sum())


def pearson(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return Pearson's correlation, or NaN if one sequence is constant."""
    if (a == a[0]).all() or (b == b[0]).all():  # after subtraction of the mean, rounding could leave a remainder
        return float("nan")
    u, v = a - a.mean(), b - b.mean()
    return float(np.clip(u @ v / np.sqrt(u @ u) / np.sqrt(v @ v), -1, 1))


def _ranks(codes: NDArray[np.int64]) -> Floats:
    """Return average ranks of integers from 0 on, without sorting."""
    count = np.bincount(codes)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[codes])


def segment_correlations(human: Floats, judge: Floats) -> Mapping[str, Floats]:
    """Return each segment's correlations over its systems, by name [N]. NaN if one side is constant or has fewer than
    two systems."""
    systems, segments = human.shape
    found = {name: np.full(segments, np.nan) for name in CORRELATIONS}
    width = max(1, BLOCK_ELEMENTS // (systems * systems))
    for begin in range(0, segments, width):
        part = slice(begin, begin + width)
        for name, values in _segment_correlations(human[:, part].T, judge[:, part].T).items():
            found[name][part] = values
    return found


def _segment_correlations(x: Floats, y: Floats) -> dict[str, Floats]:
    """Return the correlations of rows [N, S]. Ranks, ties and concordance follow from all comparisons [N, S, S]."""
    there = np.isfinite(x) & np.isfinite(y)
    both = there[:, :, None] & there[:, None, :]
    signs = [np.where(both, np.sign(v[:, :, None] - v[:, None, :]), 0.0) for v in (x, y)]
    n = there.sum(1)
    surplus, untied = (signs[0] * signs[1]).sum((1, 2)), [np.abs(s).sum((1, 2)) for s in signs]
    with np.errstate(divide="ignore"):
        levels = [np.where(there, 1 / ((both & (s == 0)).sum(2)), 0.0).sum(1).round() for s in signs]
    fewest = np.minimum(*levels)
    defined = fewest > 1
    few = np.where(defined, fewest, 2)
    tau_b = _ratio(surplus, np.sqrt(untied[0]) * np.sqrt(untied[1]))
    tau_c = np.where(defined, surplus / np.maximum(n, 1) ** 2 * few / (few - 1), np.nan)
    # The sum of signs grows by 2 from one rank to the next, as average ranks do by 1.
    ranks = [np.where(there, s.sum(2) / 2, np.nan) for s in signs]
    values = [np.where(there, v, np.nan) for v in (x, y)]
    spearman, plain = (np.where(defined, _row_pearson(*pair), np.nan) for pair in (ranks, values))
    return {"tau_b": np.where(defined, tau_b, np.nan), "tau_c": tau_c, "spearman": spearman, "pearson": plain}


def _row_pearson(x: Floats, y: Floats) -> Floats:
    there = np.isfinite(x)
    count = np.maximum(there.sum(1, keepdims=True), 1)
    u, v = (np.where(there, a - np.where(there, a, 0.0).sum(1, keepdims=True) / count, 0.0) for a in (x, y))
    return np.clip(_ratio((u * v).sum(1), np.sqrt((u * u).sum(1)) * np.sqrt((v * v).sum(1))), -1, 1)


def _ratio(above: Floats, below: Floats) -> Floats:
    """Divide, with NaN in place of a division by 0."""
    return np.asarray(np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below != 0))
