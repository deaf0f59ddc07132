import numpy as np
import pytest

from trivium.evaluation.calibration import (
    HISTOGRAM_BINS,
    calibration_error,
    contextual,
    histogram,
    separation,
    threshold_accuracy,
    without_content,
)

RNG = np.random.default_rng(5)


def test_calibration_error_is_zero_only_for_calibrated_scores():
    probability = RNG.uniform(0.5, 1, 20000)
    # the first choice is correct with its stated probability
    gold = (RNG.uniform(size=20000) > probability).astype(int)
    honest = np.log(np.stack([probability, 1 - probability], 1))
    error, bins = calibration_error(honest, gold)
    assert error < 0.02 and sum(b["n"] for b in bins) == 20000
    assert calibration_error(honest * 4, gold)[0] > 0.1
    # Expected by hand: the questions are in separate bins, [0.5, 0.6) and [0.6, 0.7); the second answer is wrong.
    sure = np.asarray([0.57, 0.64])
    error, bins = calibration_error(np.log(np.stack([sure, 1 - sure], 1)), np.asarray([0, 1]))
    assert [b["accuracy"] for b in bins] == [1.0, 0.0]
    assert error == pytest.approx((0.43 + 0.64) / 2)
    # The last bin includes probability 1.
    assert calibration_error(np.asarray([[0.0, -1e4]]), np.asarray([1])) == (
        1.0,
        [{"n": 1, "sureness": 1.0, "accuracy": 0.0}],
    )


def test_threshold_corrects_bias_but_not_ignorance():
    gold = RNG.integers(0, 2, 2000)
    signal = np.where(gold == 0, 1.0, -1.0) + RNG.normal(0, 0.5, 2000)
    leaning = np.stack([signal + 9.0, np.zeros(2000)], 1)  # always prefers the first choice
    assert (leaning.argmax(1) == gold).mean() == pytest.approx(0.5, abs=0.05)
    assert threshold_accuracy(leaning, gold) > 0.95
    blind = np.stack([RNG.normal(size=2000), np.zeros(2000)], 1)
    assert threshold_accuracy(blind, gold) == pytest.approx(0.5, abs=0.06)
    assert threshold_accuracy(np.zeros((4, 3)), np.zeros(4, int)) is None


@pytest.mark.parametrize(
    ("margins", "first", "share"),
    [
        # The best thresholds of the second half are -2 and 2, that of the first half is 0. Neither helps the other
        # half.
        ([1, 1, -1, -1], [True, False, False, True], 1 / 4),
        # The best thresholds are -4 and 2 for the first half, of which 2 is nearer to 0, and 1.5 for the second.
        ([-3, 0.5, 1, 0.4], [True, False, False, False], 3 / 4),
    ],
)
def test_each_half_uses_threshold_of_the_other(margins, first, share):
    scores = np.stack([np.asarray(margins, float), np.zeros(4)], 1)
    assert threshold_accuracy(scores, np.where(first, 0, 1)) == share


def test_threshold_lies_between_neighbours_or_outside():
    """Cases: two kinds with a wide gap, thresholds next to the largest margins, one kind alone, and two questions."""
    gold = np.arange(40) // 2 % 2
    margins = np.where(gold == 0, 5 + np.arange(40) / 200, np.arange(40) / 10)
    assert threshold_accuracy(np.stack([margins, np.zeros(40)], 1), gold) == 1.0
    alone = np.stack([np.asarray([1, 1.5, 3, 2.5]), np.zeros(4)], 1)
    for kind in (0, 1):
        assert threshold_accuracy(alone, np.full(4, kind)) == 1.0
    assert threshold_accuracy(np.asarray([[1.0, 0], [-1, 0]]), np.asarray([0, 1])) == 1.0
    assert threshold_accuracy(np.asarray([[1.0, 0]]), np.asarray([0])) is None


def test_contextual_correction_removes_prior_preference():
    gold = RNG.integers(0, 3, 500)
    bias = np.asarray([[3.0, 0.0, -2.0]])
    scores = np.eye(3)[gold] + bias
    assert (scores.argmax(1) == gold).mean() < 0.5
    assert (contextual(scores, bias).argmax(1) == gold).all()


def test_content_free_probabilities_are_averaged_then_normalised():
    """In the paper, p is the normalised mean over the inputs; the answer is argmax of diag(p)^-1 p(choice)."""
    empty, scores = np.log(RNG.uniform(0, 0.3, (3, 4))), np.log(RNG.uniform(0, 0.3, (50, 4)))
    p = np.exp(empty).mean(0)
    p /= p.sum()
    asked = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = contextual(scores, without_content(empty))
    assert np.exp(found) == pytest.approx(asked @ np.linalg.inv(np.diag(p)))
    # One input is certain of the first choice, one of the second. The mean of probabilities lies in between, but the
    # mean of logs does not.
    sure = np.log(np.asarray([[0.9, 0.001], [0.1, 0.8]]))
    assert np.exp(without_content(sure)) == pytest.approx(np.asarray([[0.5, 0.4005]]))
    leaning = np.log(np.asarray([[0.6, 0.2]]))
    assert contextual(leaning, without_content(sure)).argmax() == 0
    assert contextual(leaning, sure.mean(0, keepdims=True)).argmax() == 1


def test_separation_is_share_of_correctly_ordered_pairs():
    margins, first = RNG.normal(size=60), RNG.uniform(size=60) < 0.4
    pairs = [(a > b) + (a == b) / 2 for a in margins[first] for b in margins[~first]]
    assert separation(margins, first) == pytest.approx(np.mean(pairs))
    assert separation(np.zeros(4), np.asarray([True, False, True, False])) == 0.5
    assert separation(margins, np.ones(60, bool)) is None


def test_histogram_counts_every_question_once():
    margins, gold = RNG.normal(size=50), RNG.integers(0, 2, 50)
    found = histogram(margins, gold, (" True", " False"))
    assert sum(map(sum, found["counts"].values())) == 50
    assert all(len(counts) == HISTOGRAM_BINS == len(found["edges"]) - 1 for counts in found["counts"].values())
    assert found["edges"][0] == margins.min() and found["edges"][-1] == margins.max()
    assert sum(sum(c) for c in histogram(np.zeros(3), np.zeros(3, int), ("x",))["counts"].values()) == 3
