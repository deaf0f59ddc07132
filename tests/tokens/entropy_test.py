import numpy as np
import pytest

from trivium.tokens.entropy import add_one, entropy, unigram_entropy


def test_uniform_counts_give_log_of_vocabulary():
    assert unigram_entropy(np.full(64, 5), np.ones(64, np.int64)) == pytest.approx(np.log(64))
    assert entropy(np.full(64, 5)) == pytest.approx(np.log(64))


def test_unigram_entropy_is_mean_surprise():
    counts, text = np.asarray([7, 0, 2]), [0, 0, 1, 2]
    expected = -sum(np.log((counts[t] + 1) / 12) for t in text) / 4
    assert unigram_entropy(counts, np.bincount(text)) == pytest.approx(expected)


def test_entropy_is_mean_surprise_under_own_shares():
    text = [0, 0, 3, 4]
    expected = -sum(np.log(text.count(t) / 4) for t in text) / 4
    assert entropy(np.bincount(text, minlength=9)) == pytest.approx(expected)


def test_own_entropy_is_minimum_of_unigram_predictions():
    rng = np.random.default_rng(0)
    text = rng.choice(50, p=np.arange(1, 51) / np.arange(1, 51).sum(), size=5000)
    own = np.bincount(text, minlength=50)
    assert entropy(own) <= unigram_entropy(own * 1000, own) + 1e-12
    for _ in range(20):
        assert entropy(own) < unigram_entropy(rng.integers(0, 100, 50), own)


def test_smoothing_makes_all_tokens_possible():
    p = add_one(np.asarray([0, 0, 10]))
    assert p.min() > 0 and p.sum() == pytest.approx(1)
