import itertools
import math

import numpy as np
import pytest

from trivium.evaluation.bias.config import Draws
from trivium.evaluation.bias.significance import Texts, effect_of_mean, holm, label_exchange, percentiles, sign_flips
from trivium.seeds import generator_for

HOW = Draws(seed=1, permutations=4000)


def noise(key, size, shift=0.0):
    return generator_for(key, "noise").normal(shift, 1, size)


def texts_of(one, other, stratum=None):
    values = np.array([*one, *other], float)
    inside = np.arange(len(values)) < len(one)
    return Texts(values, np.ones(len(values)), inside, np.zeros(len(values), int) if stratum is None else stratum)


def means(sums, counts, resamples, name):
    every = np.ones(len(sums), bool)
    return Texts(sums, counts, every, every * 0).resampled(every, Draws(1, resamples=resamples), name)


def test_sign_flips_approach_exact_probability():
    values = [1.0, -0.5, 2.0, 0.7, 1.1, -0.2, 0.9, 1.4]
    means = [abs(sum(s * v for s, v in zip(signs, values))) for signs in itertools.product((-1, 1), repeat=8)]
    exact = sum(m >= abs(sum(values)) - 1e-12 for m in means) / len(means)
    assert sign_flips(values, HOW, "x") == pytest.approx(exact, abs=0.015)


def test_label_exchange_approaches_exact_probability():
    one, other = [1.2, 0.8, 2.1, 1.0], [0.1, 0.9, 0.3, 0.5]
    texts = texts_of(one, other)
    every = [
        abs(texts.differences(np.isin(np.arange(8), chosen)[None].astype(float))[0])
        for chosen in itertools.combinations(range(8), 4)
    ]
    exact = sum(e >= abs(np.mean(one) - np.mean(other)) - 1e-12 for e in every) / len(every)
    found, chance = label_exchange(texts.differences, texts.inside, texts.stratum, HOW, "x")
    assert found == pytest.approx(np.mean(one) - np.mean(other))
    assert chance == pytest.approx(exact, abs=0.015)


def test_labels_are_exchanged_only_within_a_template():
    """The full difference lies between two templates, of which one group has more texts, so the group has no effect."""
    stratum = np.array([0] * 50 + [1] * 50)
    values = noise(3, 100, 0.0) * 0.1 + 5.0 * stratum
    inside = np.array([True] * 10 + [False] * 40 + [True] * 40 + [False] * 10)
    texts = Texts(values, np.ones(100), inside, stratum)
    assert label_exchange(texts.differences, inside, stratum, HOW, "x")[1] > 0.05
    assert label_exchange(texts.differences, inside, np.zeros(100, int), HOW, "x")[1] < 0.01


@pytest.mark.parametrize("test", ["flips", "exchange"])
def test_false_positives_are_as_rare_as_the_level(test):
    how, chances = Draws(1, 200), []
    for key in range(200):
        values = noise(key, 40)
        if test == "flips":
            chances.append(sign_flips(values, how, f"{key}"))
        else:
            texts = texts_of(values[:20], values[20:])
            chances.append(label_exchange(texts.differences, texts.inside, texts.stratum, how, f"{key}")[1])
    assert 2 <= sum(c <= 0.05 for c in chances) <= 20  # expected 10, standard deviation 3.1


def test_empty_side_has_no_difference():
    empty = Texts(np.zeros(4), np.zeros(4), np.array([True, True, False, False]), np.zeros(4, int))
    assert label_exchange(empty.differences, empty.inside, empty.stratum, HOW, "x") == (0.0, 1.0)
    assert empty.effect_size() is None
    with pytest.raises(ValueError, match="0 values"):
        sign_flips([], HOW, "x")


def test_holm_follows_worked_example_and_keeps_order():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []
    chances = generator_for(5, "p").random(30).tolist()
    corrected = holm(chances)
    order = sorted(range(30), key=lambda k: chances[k])
    assert [corrected[k] for k in order] == sorted(corrected)
    assert all(p <= c <= 1 for p, c in zip(chances, corrected))


def test_effect_sizes_are_cohens_d():
    assert effect_of_mean([1.0, 2.0, 3.0], Draws(1, 9), "x")["effect_size"] == pytest.approx(2.0)
    assert effect_of_mean([1.0, 1.0], Draws(1, 9), "x")["effect_size"] is None
    one, other = noise(1, 400, 0.8), noise(2, 300)
    assert texts_of(one, other).effect_size() == pytest.approx(0.8, abs=0.2)


def test_effect_size_uses_means_of_texts_with_words():
    sums, counts = np.array([2.0, 6, 12, 0, 0, 8]), np.array([1.0, 2, 3, 0, 1, 2])
    texts = Texts(sums, counts, np.array([True] * 4 + [False] * 2), np.zeros(6, int))
    one, other = [2, 3, 4], [0, 4]  # variances 1 and 8
    pooled = math.sqrt((2 * 1 + 1 * 8) / (2 + 1))
    assert texts.effect_size() == pytest.approx((np.mean(one) - np.mean(other)) / pooled)


def test_difference_is_of_word_means_and_zero_for_empty_side():
    texts = Texts(np.array([3.0, 5, 4, 0]), np.array([1.0, 2, 1, 0]), np.zeros(4, bool), np.zeros(4, int))
    drawn = np.array([[1, 1, 0, 0], [0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 1]], float)
    assert texts.differences(drawn) == pytest.approx([8 / 3 - 4, 5 / 2 - 7 / 2, 0, 0])


def test_bootstrap_of_ratio_has_nominal_coverage():
    hits = 0
    for key in range(100):
        generator = generator_for(key, "ratio")
        counts = generator.integers(0, 4, 80).astype(float)
        sums = counts * 2 + generator.normal(0, 1, 80) * (counts > 0)
        low, high = percentiles(means(sums, counts, 200, f"{key}"), 0.95)
        hits += low <= 2 <= high
    assert 87 <= hits <= 100


def test_resample_without_counts_is_not_a_mean_of_zero():
    """One word in 50 texts: a third of the resamples miss it, and all others have the same mean."""
    counts = np.array([1.0, *[0.0] * 49])
    draws = means(80 * counts, counts, 300, "one word")
    assert 50 < np.isnan(draws).sum() < 150
    assert percentiles(draws, 0.95) == [80.0, 80.0]
    assert percentiles(means(0 * counts, 0 * counts, 20, "none"), 0.95) is None


def test_p_value_is_never_zero():
    assert sign_flips([5.0] * 60, Draws(1, 99), "x") == pytest.approx(0.01)
