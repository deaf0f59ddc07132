"""The exact GELU and its pullback are those of its definition."""

import math

import torch

from trivium.kernels.gelu_exact import GeluExact, gelu_exact


def test_value_and_gradient_are_those_of_the_error_function() -> None:
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(50, dtype=torch.float64)
    expected = x / 2 * (1 + torch.erf(x / math.sqrt(2)))
    (slope,) = torch.autograd.grad(expected, x, grad)
    value, pullback = GeluExact().value_again(x.detach())
    for found in (gelu_exact(x), GeluExact().value(x.detach()), value):
        torch.testing.assert_close(found.detach(), expected.detach())
    torch.testing.assert_close(pullback(grad), slope)
