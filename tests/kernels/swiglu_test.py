"""SwiGLU is its definition, and keeps what it is given and nothing else."""

import pytest
import torch
import torch.nn.functional as F

from trivium.kernels.swiglu import swiglu
from trivium.parallel.pipeline.saved_bytes import SavedBytes


@pytest.mark.parametrize("shape", ((3, 2, 16), (1, 1, 2), (5, 6)))
def test_value_and_gradient_are_those_of_the_definition(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    half = shape[-1] // 2
    grad = torch.randn(*shape[:-1], half, dtype=torch.float64)
    expected = x[..., :half] / (1 + (-x[..., :half]).exp()) * x[..., half:]
    (wanted,) = torch.autograd.grad(expected, x, grad)
    found = swiglu(x)
    (ours,) = torch.autograd.grad(found, x, grad)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(ours, wanted, rtol=1e-13, atol=1e-14)


def test_narrow_numbers_are_rounded_where_pytorch_rounds_them() -> None:
    """So what is compiled, which writes the definition down, is as exact."""
    torch.manual_seed(0)
    x = torch.randn(64, 32).bfloat16().requires_grad_()
    grad = torch.randn(64, 16).bfloat16()
    gate, up = x.chunk(2, -1)
    (wanted,) = torch.autograd.grad(F.silu(gate) * up, x, grad)
    (ours,) = torch.autograd.grad(swiglu(x), x, grad)
    assert torch.equal(ours, wanted)


def test_its_backward_keeps_its_input_alone() -> None:
    x = torch.randn(7, 32, requires_grad=True)
    with SavedBytes([]).counting() as kept:
        y = swiglu(x * 1)
    assert kept.bytes == 7 * 32 * 4 and y.shape == (7, 16)
