"""Measures of agreement: equal to scipy's and to the published hand cases, and the laws that they keep."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from trivium.evaluation.judges.agreement import (
    CORRELATIONS,
    NAMES,
    correlations,
    measures,
    p_values,
    pairs_of,
    resamples,
    rounded,
    segment_correlations,
    soft_accuracy,
    system_accuracy,
    tie_calibration,
)
from trivium.evaluation.judges.compare import compare

NAN = math.nan


def column(values):
    """Scores of several systems on one segment."""
    return np.array(values, float)[:, None]


def made(seed, systems=5, segments=30, levels=None, missing=0.0, noise=1.0):
    """Made scores of people and of a judge, the people's plus noise."""
    rng = np.random.default_rng(seed)
    human = rng.normal(size=(systems, segments)) + np.linspace(0, 1, systems)[:, None]
    judge = human + noise * rng.normal(size=human.shape)
    if levels:
        human, judge = (np.round(x * levels) / levels for x in (human, judge))
    human[rng.random(human.shape) < missing], judge[rng.random(human.shape) < missing] = NAN, NAN
    return human, judge


def value(name, human, judge):
    return float(measures(human, judge, 0)(np.ones((1, human.shape[1])))[name][0])


def test_tie_calibration_keeps_zero_where_no_tie_helps():
    found = tie_calibration(column([1, 2, 3, 4]), column([0, 2, 6, 8]))
    assert found.thresholds.tolist() == [0, 2, 4, 6, 8]
    assert (6 * found.accuracies).round(9).tolist() == [6, 4, 3, 1, 0]
    assert (found.threshold, found.accuracy) == (0, 1)


def test_tie_calibration_introduces_the_ties_that_people_have():
    found = tie_calibration(column([1, 1, 1, 4]), column([0, 2, 6, 8]))
    assert (6 * found.accuracies).round(9).tolist() == [3, 3, 4, 4, 3]
    assert found.threshold == 4 and found.accuracy == pytest.approx(4 / 6)


def naive_calibration(human, judge):
    """The definition, with a loop over thresholds, segments and pairs of systems."""

    def accuracy(threshold):
        shares = []
        for h, m in zip(human.T, judge.T, strict=True):
            known = [(a, b) for a, b in zip(h, m, strict=True) if np.isfinite(a) and np.isfinite(b)]
            right = []
            for (h1, m1), (h2, m2) in itertools.combinations(known, 2):
                said = 0 if abs(m1 - m2) <= threshold else np.sign(m1 - m2)
                right.append(said == np.sign(h1 - h2))
            shares += [np.mean(right)] if right else []
        return np.mean(shares)

    flat = [abs(a - b) for m in judge.T for a, b in itertools.combinations(m, 2)]
    scored = np.isfinite(human) & np.isfinite(judge)
    masked = np.where(scored, judge, NAN)
    flat = [abs(a - b) for m in masked.T for a, b in itertools.combinations(m, 2) if np.isfinite(a - b)]
    return {t: accuracy(t) for t in sorted({0.0, *flat})}


@pytest.mark.parametrize("seed", range(4))
def test_tie_calibration_equals_its_definition_with_missing_scores(seed):
    human, judge = made(seed, segments=12, levels=2, missing=0.25)
    human[:, 3], judge[1:, 5] = NAN, NAN  # segments without a pair do not count
    expected, found = naive_calibration(human, judge), tie_calibration(human, judge)
    assert found.thresholds.tolist() == list(expected)
    assert found.accuracies.tolist() == pytest.approx(list(expected.values()))
    for threshold, accuracy in expected.items():
        assert np.nanmean(pairs_of(human, judge).by_segment(threshold)) == pytest.approx(accuracy)
    best = max(expected.values())
    assert found.threshold == next(t for t, a in expected.items() if a > best - 1e-9)


@pytest.mark.parametrize("scale", [1, 10, 0.3, 1e-200, 1e200])
def test_equal_differences_of_a_judge_become_ties_together(scale):
    human, judge = np.array([[0.0, 0], [1, 0]]), np.array([[0.1, 0.2], [0.2, 0.3]]) * scale
    found = tie_calibration(human, judge)
    assert len(found.thresholds) == 2 and found.accuracy == 0.5


def test_scores_that_differ_by_rounding_alone_are_tied():
    sums = np.array([[0.1 + 0.2, 1.0 + 0.1 + 0.1], [0.3, 0.1 + 0.1 + 1.0], [0.4, 1.3]])
    assert len(np.unique(sums)) == 6 and len(np.unique(rounded(sums, sums))) == 4
    assert tie_calibration(sums, np.round(sums, 9)).accuracy == 1


def test_published_matrices_of_tie_calibration():
    # The example of mt-metrics-eval's own test of its optimisation; rows are segments there.
    judge = [[0, 5, 2, 3, 2], [NAN, 2, 1, 5, 3], [9, 1, 5, 3, 8], [9, 3, 4, 4, 1], [NAN] * 5]
    human = [[1, 5, 2, 1, 1], [4, 2, 2, 1, 4], [5, 9, 2, 8, 7], [7, 6, NAN, 3, 2], [NAN] * 5]
    found = tie_calibration(np.array(human, float).T, np.array(judge, float).T)
    expected = [0.46667, 0.49167, 0.38333, 0.29167, 0.26667, 0.2, 0.15833, 0.15833, 0.11667]
    assert found.accuracies.tolist() == pytest.approx(expected, abs=1e-5)
    assert found.threshold == 1


def test_p_value_of_the_published_pair_is_one_of_32_flips():
    difference = np.array([[0.8, 0.9, 0.7, 1.0, 0.6]]) - np.array([[0.2, 0.3, 0.1, 0.4, 0.0]])
    found, _ = p_values(difference, np.ones((1, 5)), seed=0, permutations=1000)
    assert found[0, 0] == 1 / 32  # the observed order itself: at least as large, and not larger


def test_random_flips_approach_enumerated_ones():
    rng = np.random.default_rng(1)
    difference = rng.normal(0.2, 1, size=(3, 14))
    signs = np.array(list(itertools.product([1, -1], repeat=14)))
    exact = (signs @ difference.T >= difference.sum(1) - 1e-9).mean(0)
    found, _ = p_values(difference, np.ones((1, 14)), seed=3, permutations=20_000)
    assert found[0].tolist() == pytest.approx(exact.tolist(), abs=0.02)


def test_soft_accuracy_is_one_for_the_same_scores_and_uses_the_same_flips():
    human, judge = made(2, segments=200)
    ones = np.ones((1, 200))
    assert soft_accuracy(human, human, ones, seed=5)[0] == 1
    assert soft_accuracy(human, 3 * human - 7, ones, seed=5)[0] == 1
    assert soft_accuracy(human, -human, ones, seed=5)[0] < 0.5
    again = soft_accuracy(human, judge, ones, seed=5)[0]
    assert soft_accuracy(human, judge, ones, seed=5)[0] == again


def test_soft_accuracy_of_resamples_is_that_of_repeated_segments():
    # The normal approximation that resamples use is close to the flips of the repeated segments.
    human, judge = made(3, segments=300, noise=2)
    weights = next(resamples(300, 1, 0, "test"))
    repeated = np.repeat(np.arange(300), weights[0].astype(int))
    exact = soft_accuracy(human[:, repeated], judge[:, repeated], np.ones((1, 300)), seed=5, permutations=5000)[0]
    assert soft_accuracy(human, judge, weights, seed=5)[0] == pytest.approx(exact, abs=0.02)


def test_system_accuracy_counts_pairs_in_the_same_order():
    human = np.array([[1.0, 3], [2, 4], [9, 9], [9, 9]])
    judge = np.array([[5.0, 5], [6, 6], [7, 7], [8, 8]])
    # Five pairs are ordered alike; the last is tied for people alone.
    assert system_accuracy(human, judge, np.ones((1, 2)))[0] == pytest.approx(5 / 6)


@pytest.mark.parametrize("levels", [None, 1, 3])
def test_correlations_over_all_items_equal_those_of_scipy(levels):
    human, judge = made(4, systems=6, segments=40, levels=levels, missing=0.1)
    here = np.isfinite(human) & np.isfinite(judge)
    x, y = human[here], judge[here]
    expected = [
        *(stats.kendalltau(x, y, variant=variant).statistic for variant in "bc"),
        *(stats.spearmanr(x, y).statistic, stats.pearsonr(x, y).statistic),
    ]
    assert correlations(human, judge, np.ones((1, 40)))[0].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("levels", [None, 1, 3])
def test_correlations_by_segment_equal_those_of_scipy_without_constant_segments(levels):
    human, judge = made(5, systems=7, segments=40, levels=levels, missing=0.1)
    human[:, 0] = 4.0
    found = segment_correlations(human, judge)
    functions = {
        "tau_b": lambda x, y: stats.kendalltau(x, y, variant="b"),
        "tau_c": lambda x, y: stats.kendalltau(x, y, variant="c"),
        "spearman": stats.spearmanr,
        "pearson": stats.pearsonr,
    }
    for name, function in functions.items():
        expected = []
        for h, m in zip(human.T, judge.T, strict=True):
            here = np.isfinite(h) & np.isfinite(m)
            varies = len(set(h[here])) > 1 and len(set(m[here])) > 1
            expected.append(function(h[here], m[here]).statistic if varies else NAN)
        assert found[name].tolist() == pytest.approx(expected, abs=1e-9, nan_ok=True), name
        assert value(f"{name}_by_segment", human, judge) == pytest.approx(np.nanmean(expected))


def test_weights_are_the_measures_of_repeated_segments():
    human, judge = made(6, segments=25, levels=2, missing=0.1)
    weights = next(resamples(25, 3, 0, "test"))
    for row in weights:
        repeated = np.repeat(np.arange(25), row.astype(int))
        for name, found in measures(human, judge, 0)(row[None]).items():
            if name != "soft_accuracy":  # by the normal approximation, tested above
                expected = value(name, human[:, repeated], judge[:, repeated])
                assert found[0] == pytest.approx(expected), name


def test_monotone_maps_leave_rank_measures_alone():
    human, judge = made(7)
    for name in ("tau_b", "tau_c", "spearman", "tau_b_by_segment", "tau_c_by_segment", "spearman_by_segment"):
        assert value(name, human, np.exp(judge)) == pytest.approx(value(name, human, judge), abs=1e-12), name
    assert value("pearson", human, np.exp(judge)) != pytest.approx(value("pearson", human, judge), abs=0.01)


def test_rounding_changes_the_accuracy_without_a_threshold():
    human, judge = made(8, levels=1, noise=0.3)
    fine, coarse = (tie_calibration(human, m).accuracies[0] for m in (judge + 1e-3 * np.arange(5)[:, None], judge))
    assert coarse > fine + 0.05  # the ties of people are ties of the rounded judge


def test_constant_judge_has_no_correlation():
    human, _ = made(9)
    constant = np.full_like(human, 3.1)
    for name in CORRELATIONS:
        assert math.isnan(value(name, human, constant)) and math.isnan(value(f"{name}_by_segment", human, constant))
    assert value("system_accuracy", human, constant) == 0
    assert value("segment_accuracy", human, constant) == 0  # people have no ties


def test_planted_judges_are_ranked_by_every_measure():
    human, _ = made(10, systems=8, segments=400)
    rng = np.random.default_rng(3)
    judges = [human + noise * rng.normal(size=human.shape) for noise in (0.2, 1, 5)]
    for name in NAMES:
        found = [value(name, human, judge) for judge in judges]
        assert found == sorted(found, reverse=True), name
        assert name == "system_accuracy" or found[0] > found[2], name


def test_coarse_and_length_biased_judges_rank_below_the_judge_that_they_distort():
    human, fine = made(13, systems=8, segments=400, noise=0.2)
    length = np.random.default_rng(4).integers(10, 90, size=human.shape)
    for name in ("tau_c", "spearman", "pearson", "spearman_by_segment"):
        found = [value(name, human, judge) for judge in (fine, np.round(fine), fine + length / 20, length)]
        assert found == sorted(found, reverse=True) and abs(found[-1]) < 0.1, name


def test_pairs_that_lack_a_score_are_no_pairs():
    human = np.array([[1.0, 1], [2, NAN], [3, 3]])
    assert pairs_of(human, human).counts.tolist() == [3, 1]


def test_permutations_tell_a_noisy_judge_from_a_good_one():
    human, good = made(11, systems=6, segments=60, noise=0.3)
    _, bad = made(11, systems=6, segments=60, noise=3)
    found = compare(human, good, bad, seed=0, permutations=200)
    for name in ("tau_b", "tau_c", "spearman", "pearson", "segment_accuracy", "tau_b_by_segment", "pearson_by_segment"):
        assert found[name]["p"] < 0.02 and found[name]["difference"] > 0.1, name


def test_permutations_find_no_difference_between_equal_judges():
    human, judge = made(12, systems=6, segments=60)
    for name, found in compare(human, judge, 10 * judge + 3, seed=0, permutations=200).items():
        assert found["difference"] == pytest.approx(0, abs=1e-9) and found["p"] == 1, name


def test_p_values_of_exchangeable_judges_are_uniform():
    # Two judges with the same noise: a test at level 0.2 rejects about one in five.
    small = dict.fromkeys(("pearson", "spearman", "segment_accuracy", "tau_b_by_segment"), 0)
    for seed in range(30):
        human, _ = made(seed, systems=4, segments=25, levels=1)
        rng = np.random.default_rng(1000 + seed)
        one, other = (human + rng.normal(size=human.shape).round() for _ in range(2))
        found = compare(human, one, other, seed=seed, permutations=60)
        small = {name: count + (found[name]["p"] <= 0.2) for name, count in small.items()}
    assert all(1 <= count <= 14 for count in small.values()), small  # 6 expected, with a deviation of 2.2
