import numpy as np
import pytest
import torch

from trivium.model.generate import Choice, pick

LOGITS = torch.tensor([0.0, 2.0, -1.0, 2.0, 1.0, -30.0])


def drawn(choice, draws=4000):  # at even steps: all that weigh more than one of them are among them
    """uniforms at even intervals, so that every token with a larger probability is drawn"""
    return np.bincount([pick(LOGITS, choice, uniform=(k + 0.5) / draws) for k in range(draws)], minlength=6) / draws


def test_unlimited_sampling_follows_probabilities():
    for temperature in (0.5, 1.0, 2.0):
        expected = torch.softmax(LOGITS / temperature, -1).numpy()
        assert drawn(Choice(temperature, 0, 1.0, 0)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-9])
def test_low_temperature_selects_among_the_most_likely(temperature):
    for uniform in (0, 0.5, 0.99):
        for choice in (Choice(temperature, 0, 1.0, 0), Choice(temperature, 2, 0.9, 0)):
            assert LOGITS[pick(LOGITS, choice, uniform=uniform)] == LOGITS.max()


def test_temperature_zero_selects_first_argmax():
    assert pick(LOGITS, Choice(0, 0, 1.0, 0), uniform=0.99) == 1


def test_top_k_limits_sampling():
    assert set(np.flatnonzero(drawn(Choice(1.0, 3, 1.0, 0)))) == {1, 3, 4}


def test_nucleus_is_the_smallest_set_reaching_top_p():
    ordered = torch.softmax(LOGITS, -1).sort(descending=True, stable=True)
    for top_p in (0.5, 0.8, 0.9, 0.97, 0.9999):
        fewest = int((ordered.values.cumsum(0) < top_p).sum()) + 1
        assert set(np.flatnonzero(drawn(Choice(1.0, 0, top_p, 0), 1000))) == set(ordered.indices[:fewest].tolist())


def test_top_p_applies_to_renormalised_top_k():
    """The order of filters, with renormalisation in between, is that of transformers."""
    ordered = torch.softmax(LOGITS, -1).sort(descending=True, stable=True)
    for k in (2, 3, 4):
        for top_p in (0.6, 0.8, 0.97):
            shares = ordered.values[:k].cumsum(0) / ordered.values[:k].sum()
            fewest = int((shares < top_p).sum()) + 1
            expected = set(ordered.indices[:fewest].tolist())
            assert set(np.flatnonzero(drawn(Choice(1.0, k, top_p, 0), 1000))) == expected


@pytest.mark.parametrize("uniform", [0.0, 1 - 1e-16])
def test_extreme_uniforms_select_allowed_tokens(uniform):
    assert pick(LOGITS, Choice(1.0, 0, 0.5, 0), uniform=uniform) in (1, 3)
