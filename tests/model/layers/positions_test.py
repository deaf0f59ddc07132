"""Rotated queries and keys equal the formula, with its gradients, and keep their memory layout."""

import math

import pytest
import torch

from trivium.model.layers.positions import Rotation
from trivium.plan.layers.positions import Rotary
from trivium.plan.rope_scaling import RopeScaling

S, B, N, G, D = 5, 3, 4, 2, 6


def turned(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return x rotated: each pair (d, d + D/2) is a complex number, multiplied by e^(i angle)."""
    speeds = 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = (positions.double().unsqueeze(-1) * speeds).unsqueeze(1)
    pairs = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag), -1)


def test_values_and_gradients_are_those_of_complex_numbers() -> None:
    torch.manual_seed(0)
    given = [torch.randn(S, B, n, D, dtype=torch.float64).permute(1, 2, 0, 3) for n in (N, G)]
    grads = [torch.randn(B, n, S, D, dtype=torch.float64) for n in (N, G)]
    numbers = torch.stack([torch.randperm(S) + 10 * b for b in range(B)])  # [B, S]
    for positions in (numbers, numbers[:1]):
        ours, theirs = ([x.clone().requires_grad_() for x in given] for _ in range(2))
        found = Rotation(Rotary(D, 10000.0, None))(*ours, positions)
        for x, right, y, grad in zip(ours, theirs, found, grads, strict=True):
            exact = turned(right, positions)
            torch.testing.assert_close(y, exact, rtol=1e-13, atol=1e-13)
            (back,), (expected,) = torch.autograd.grad(y, x, grad), torch.autograd.grad(exact, right, grad)
            torch.testing.assert_close(back, expected, rtol=1e-13, atol=1e-13)


def test_positions_that_come_first_in_memory_still_do() -> None:
    """The output of attention then has the same layout, and enters the next product without a copy."""
    q, k = (torch.randn(S, B, n, D).permute(1, 2, 0, 3) for n in (N, G))
    for x in Rotation(Rotary(D, 10000.0, None))(q, k, torch.arange(S)[None]):
        assert x.permute(2, 0, 1, 3).is_contiguous()


@pytest.mark.parametrize(
    ("factor", "attention", "expected"),
    [(8.0, None, 0.1 * math.log(8) + 1), (8.0, 1.25, 1.25), (1.0, None, 1.0), (0.5, None, 1.0)],
)
def test_sines_and_cosines_grow_with_the_factor_and_never_shrink(
    factor: float, attention: float | None, expected: float
) -> None:
    """As in the paper's code, where a factor of at most 1 stretches nothing."""
    yarn = RopeScaling(kind="yarn", factor=factor, original=64, slow=1, fast=32, attention=attention)
    assert Rotation(Rotary(8, 10000.0, yarn)).magnitude == pytest.approx(expected)
    linear = RopeScaling(kind="linear", factor=factor)
    assert Rotation(Rotary(8, 10000.0, linear)).magnitude == Rotation(Rotary(8, 10000.0, None)).magnitude == 1.0
