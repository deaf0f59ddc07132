"""The learning rate follows tokens, as in the paper."""

import pytest

from trivium.training.config import TrainingConfig
from trivium.training.rates import learning_rate

PAPER = TrainingConfig(lr=5e-5, warmup_tokens=10**9, decay_tokens=340 * 10**9)


def test_the_rate_rises_linearly_and_peaks_at_the_end_of_warm_up() -> None:
    assert learning_rate(PAPER, 5 * 10**8, 0) == pytest.approx(2.5e-5)
    assert learning_rate(PAPER, 10**9, 0) == pytest.approx(5e-5)


def test_the_rate_at_270_b_tokens_is_the_papers() -> None:
    assert learning_rate(PAPER, 270 * 10**9, 0) == pytest.approx(9.6e-6, rel=0.01)  # derived in the facts


def test_the_rate_ends_at_a_tenth_and_stays_there() -> None:
    assert learning_rate(PAPER, 340 * 10**9, 0) == pytest.approx(5e-6)
    assert learning_rate(PAPER, 500 * 10**9, 0) == pytest.approx(5e-6)


def test_without_decay_tokens_the_decay_ends_with_the_run() -> None:
    config = TrainingConfig(lr=1.0, warmup_tokens=100)
    assert learning_rate(config, 1000, 1000) == pytest.approx(0.1)
    assert learning_rate(config, 550, 1000) == pytest.approx(0.55)
