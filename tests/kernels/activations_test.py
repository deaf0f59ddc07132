"""Activation functions are their definitions, of every backend; gated ones keep their input alone."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from trivium.kernels.activations import GATED, Activation
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.operations import Operations, operations_of
from trivium.parallel.pipeline.saved_bytes import SavedBytes
from trivium.parallel.tensor.row_product import row_product
from trivium.parallel.tensor.weight_gradients import WeightGradients

Tensor = torch.Tensor


def gelu_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def gated(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]


DEFINITIONS = {"gelu_tanh": gelu_tanh, "gelu": gelu, "silu": silu}
CASES: list[tuple[Activation, Callable[[Tensor], Tensor]]] = [
    case
    for each in (Operations(), operations_of("cpu"))
    for case in (
        *((activation, DEFINITIONS[name]) for name, activation in each.activations.items()),
        *((activation, gated(DEFINITIONS[name])) for name, activation in each.gated.items()),
    )
]
FEW, MANY = 6, (1 << 15) // 16 + 3  # rows of 16 numbers; from 2^15 numbers on a processor computes GELU by a sigmoid


def near(found: Tensor, exact: Tensor, dtype: torch.dtype) -> bool:
    error = float((found.detach().double() - exact.detach()).norm() / exact.detach().norm())
    return error < {torch.float64: 1e-13, torch.bfloat16: 2**-7}[dtype]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [FEW, MANY])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_product_of_the_value_kept_or_computed_again_is_that_of_the_definition(
    case, rows, separate, has_bias, dtype
) -> None:
    function, definition = case
    torch.manual_seed(rows)
    x = torch.randn(rows, 1, 32, dtype=dtype, requires_grad=True)
    width = function(x.detach()[:1] * 1).shape[-1]
    weight = torch.nn.Parameter(torch.randn(8, width, dtype=dtype))
    bias = torch.randn(8, dtype=dtype, requires_grad=True) if has_bias else None
    grad = torch.randn(rows, 1, 8, dtype=dtype)
    leaves = [t for t in (x, weight, bias) if t is not None]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    expected = F.linear(definition(exact[0]), *exact[1:])
    wanted = (expected, *torch.autograd.grad(expected, exact, grad.double()))

    kept = F.linear(function(x * 1), weight, bias)  # x itself must stay as it is
    once = (kept, *torch.autograd.grad(kept, leaves, grad))
    later = WeightGradients()
    later.separate = separate
    found = row_product(x * 1, weight, bias, later, Arithmetic(), function=function)
    with later.put_off("key"):
        found.backward(grad)
    if separate:
        assert weight.grad is None
        later.finish("key", lambda parameter: None)
    for ours in (once, (found, *(t.grad for t in leaves))):
        assert all(near(mine, right, dtype) for mine, right in zip(ours, wanted, strict=True))


@pytest.mark.parametrize("name", GATED)
def test_a_gated_backward_keeps_its_input_alone_and_rounds_where_torch_does(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 32).bfloat16().requires_grad_()
    with SavedBytes([]).counting() as kept:
        y = GATED[name](x * 1)
    assert kept.bytes == 64 * 32 * 2 and y.shape == (64, 16)
    grad = torch.randn(64, 16).bfloat16()
    functions = {"silu": F.silu, "gelu_tanh": Operations().activations["gelu_tanh"]}
    (wanted,) = torch.autograd.grad(gated(functions[name])(x), x, grad)
    assert torch.equal(torch.autograd.grad(GATED[name](x), x, grad)[0], wanted)
