"""A product of an activation function's value that is computed again is the product of the value that is kept."""

import pytest
import torch

from trivium.kernels.gelu import LEAST, Gelu, gelu
from trivium.kernels.swiglu import SwiGlu, swiglu
from trivium.parallel.tensor.row_product import row_product
from trivium.parallel.tensor.weight_gradients import WeightGradients

FUNCTIONS = {"gelu": (Gelu(), gelu, 1), "swiglu": (SwiGlu(), swiglu, 2)}
FEW, MANY = 6, LEAST // 16 + 3  # rows of 16 numbers


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("rows", [FEW, MANY])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_value_and_gradients_are_those_of_keeping_it(name, rows, separate, has_bias, dtype) -> None:
    function, plain, halves = FUNCTIONS[name]
    torch.manual_seed(rows)
    x = torch.randn(rows, 1, 16 * halves, dtype=dtype, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(8, 16, dtype=dtype))
    bias = torch.randn(8, dtype=dtype, requires_grad=True) if has_bias else None
    grad = torch.randn(rows, 1, 8, dtype=dtype)
    leaves = [t for t in (x, weight, bias) if t is not None]
    # x itself must stay as it is.
    expected = torch.nn.functional.linear(plain(x * 1), weight, bias)
    wanted = torch.autograd.grad(expected, leaves, grad)

    later = WeightGradients()
    later.separate = separate
    found = row_product(x * 1, weight, bias, later, function=function)
    with later.put_off("key"):
        found.backward(grad)
    if separate:
        assert weight.grad is None
        later.finish("key", lambda parameter: None)
    for ours, kept in zip((found, *(t.grad for t in leaves)), (expected, *wanted), strict=True):
        error = float((ours - kept).detach().double().norm() / kept.detach().double().norm())
        assert error < {torch.float64: 1e-13, torch.bfloat16: 2**-7}[dtype]
