import math

import numpy as np
import pytest

from trivium.evaluation.statistics import bootstrap_mean, sign_test, wilson


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (250, 1000), (1, 1)])
def test_wilson_follows_the_formula(k, n):
    z, p = 1.959963984540054, k / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert wilson(k, n) == pytest.approx((max(0, centre - half), min(1, centre + half)), abs=1e-9)


def test_bootstrap_of_mean_agrees_with_standard_error():
    values = np.random.default_rng(2).normal(3, 2, size=400).tolist()
    low, high = bootstrap_mean(values, seed=1, name="x", resamples=2000)
    error = np.std(values) / math.sqrt(len(values))
    assert low == pytest.approx(np.mean(values) - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(np.mean(values) + 1.96 * error, abs=0.2 * error)


def test_bootstrap_depends_on_seed_and_name_only():
    values = np.random.default_rng(2).normal(size=50).tolist()
    one = bootstrap_mean(values, seed=1, name="x")
    assert one == bootstrap_mean(values, seed=1, name="x")
    assert one != bootstrap_mean(values, seed=2, name="x") and one != bootstrap_mean(values, seed=1, name="y")


def test_intervals_widen_with_confidence():
    values = [1.0, 2.0, 5.0, 9.0, 11.0]
    for narrow, wide in (
        (wilson(7, 20, confidence=0.8), wilson(7, 20, confidence=0.99)),
        (bootstrap_mean(values, seed=1, name="x", confidence=0.5), bootstrap_mean(values, seed=1, name="x")),
    ):
        assert wide.low < narrow.low <= narrow.high < wide.high


@pytest.mark.parametrize(("positive", "negative"), [(0, 0), (0, 5), (3, 9), (6, 6), (40, 60), (1, 0)])
def test_sign_test_sums_the_binomial(positive, negative):
    n, k = positive + negative, min(positive, negative)
    tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    assert sign_test(positive, negative) == pytest.approx(min(1.0, 2 * tail))


def test_impossible_shares_and_empty_means_are_rejected():
    for k, n in ((-1, 3), (4, 3), (0, 0)):
        with pytest.raises(ValueError, match=f"{k} successes of {n}"):
            wilson(k, n)
    with pytest.raises(ValueError, match="0 values"):
        bootstrap_mean([], seed=1, name="x")
