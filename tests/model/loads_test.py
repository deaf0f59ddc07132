"""The losses of routers and their gradients, against transformers, Megatron's formula and autograd, in fp64."""

import math
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from trivium.comms.group import Group
from trivium.model.loads import Averaging, Loads
from trivium.plan.experts import Experts

S, B, E = 6, 4, 8  # positions, sequences, experts
ALONE = Group("context", (0,), 0, None)
Tensor = torch.Tensor


def experts(**more: Any) -> Experts:
    return Experts.model_validate({"count": E, "chosen": 2, **more})


def loads(layers: int = 1, scale: float = 1.0) -> Loads:
    """Return the loads of a batch of one micro-batch on one rank."""
    return Loads(Averaging(S, S * B, layers, scale, ALONE, ALONE), B)


def routed(of: Loads, layer: int, asked: Experts, logits: Tensor) -> Tensor:
    """Return the logits that the router passes on after counting its choices."""
    router = of.router(layer, asked)
    attached = router.attached(logits)
    scores = attached.detach().softmax(-1) if asked.scores == "softmax" else attached.detach().sigmoid()
    router.count(scores, scores.topk(asked.chosen, dim=-1).indices)
    return attached


def drawn(layers: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(layers)
    shape = (S * B, E)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(layers)]


def value_and_slopes(asked: Experts, logits: list[Tensor], scale: float = 1.0) -> tuple[float, list[Tensor]]:
    """Return the reported loss, and the gradients that a backward of this loss alone leaves."""
    of = loads(len(logits), scale)
    attached = [routed(of, n, asked, each) for n, each in enumerate(logits)]
    slopes = torch.autograd.grad(sum((0 * each).sum() for each in attached), logits)
    shares = [of.router(n, asked) for n in range(len(logits))]
    told = sum(r.balance_share() if asked.balance_loss else r.z_share() for r in shares)
    return float(told), list(slopes)


def megatron(asked: Experts, logits: list[Tensor]) -> Tensor:
    """Return switch_load_balancing_loss_func of Megatron-LM summed over layers: a E / (k T^2) sum(tokens P)."""
    found = torch.zeros((), dtype=torch.float64)
    for each in logits:
        scores = each.softmax(-1) if asked.scores == "softmax" else each.sigmoid()
        probabilities = scores / scores.sum(-1, keepdim=True)
        visits = torch.zeros_like(each).scatter_(1, scores.topk(asked.chosen, dim=-1).indices, 1.0)
        for tokens in _sets(asked, len(each)):
            T = len(tokens)
            both = visits[tokens].sum(0) * probabilities[tokens].sum(0)
            own = both.sum() * (asked.balance_loss * asked.count / (asked.chosen * T * T))
            found = found + own * T / len(each)
    return found


def _sets(asked: Experts, tokens: int) -> list[Tensor]:
    """Return the sets of tokens that are balanced. Tokens are ordered by position, then by sequence."""
    numbers = torch.arange(tokens)
    return [numbers[numbers % B == b] for b in range(B)] if asked.balance_scope == "sequence" else [numbers]


@pytest.mark.parametrize("scope", ["micro_batch", "sequence", "global_batch"])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_megatron_convention_is_its_formula_with_its_gradient(scope: Any, scores: Any) -> None:
    asked, logits = experts(balance_loss=0.3, balance_scope=scope, scores=scores), drawn(2)
    expected = megatron(asked, logits)
    value, slopes = value_and_slopes(asked, logits)
    assert value == pytest.approx(float(expected.detach()), rel=1e-12)
    for ours, theirs in zip(slopes, torch.autograd.grad(expected, logits), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)


@pytest.mark.broad  # the import takes seconds
@pytest.mark.parametrize("layers", [1, 2])
def test_transformers_convention_is_its_function_with_its_gradient(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    monkeypatch.setattr(torch, "float32", torch.float64)  # it adds up in fp32, whatever the logits are
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    asked, logits = experts(balance_loss=0.3, balance_convention="transformers"), drawn(layers)
    expected = 0.3 * load_balancing_loss_func(tuple(logits), E, asked.chosen)
    value, slopes = value_and_slopes(asked, logits)
    assert value == pytest.approx(float(expected.detach()), rel=1e-12)
    for ours, theirs in zip(slopes, torch.autograd.grad(expected, logits), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("convention", "times"), [("megatron", 1), ("transformers", 2)])
def test_an_even_load_gives_the_factor_or_k_times_the_factor(convention: Any, times: int) -> None:
    asked = experts(balance_loss=0.3, balance_convention=convention)
    of = loads()
    router = of.router(0, asked)
    even = torch.full((S * B, E), 1 / E, dtype=torch.float64)
    router.count(even, (2 * torch.arange(S * B)[:, None] + torch.arange(2)) % E)
    assert float(router.balance_share()) == pytest.approx(0.3 * times, rel=1e-12)


def test_z_loss_is_the_mean_square_with_its_gradient() -> None:
    asked, (logits,) = experts(router_z_loss=0.2), drawn()
    expected = 0.2 * logits.exp().sum(-1).log().square().mean()
    value, (slope,) = value_and_slopes(asked, [logits])
    assert value == pytest.approx(float(expected.detach()), rel=1e-12)
    torch.testing.assert_close(slope, torch.autograd.grad(expected, logits)[0], rtol=1e-10, atol=1e-14)


def test_gradients_are_times_the_scale_of_losses_and_values_are_not() -> None:
    asked, logits = experts(balance_loss=0.3, router_z_loss=0.1), drawn(2)
    value, slopes = value_and_slopes(asked, logits)
    scaled, larger = value_and_slopes(asked, logits, scale=8.0)
    assert scaled == value
    for once, eight in zip(slopes, larger, strict=True):
        torch.testing.assert_close(eight, 8 * once)


def test_a_recomputed_forward_is_counted_once_and_gives_the_same_gradient() -> None:
    asked, (logits,) = experts(balance_loss=0.3), drawn()
    expected = value_and_slopes(asked, [logits])[1][0]
    of = loads()
    again = checkpoint(lambda x: routed(of, 0, asked, x) * 0, logits, use_reentrant=False)
    (slope,) = torch.autograd.grad(again.sum(), logits)
    counts = of.router(0, asked).counts
    assert counts is not None and float(counts.sum()) == asked.chosen * S * B  # tokens are conserved
    torch.testing.assert_close(slope, expected)


def test_without_losses_nothing_is_attached_and_loads_are_counted() -> None:
    asked, (logits,) = experts(), drawn()
    of = loads()
    assert routed(of, 0, asked, logits) is logits
    counts = of.router(0, asked).counts
    assert counts is not None and counts.shape == (1, E) and math.isclose(float(counts.sum()), asked.chosen * S * B)
