"""GELU in its tanh form, as in GPT-2 and Megatron.

On a processor it is x times a sigmoid, of which PyTorch's takes a tenth of its hyperbolic tangent's time; its
derivative, known with it, is kept for the backward in place of x. Where MKL is at home PyTorch's own is as fast.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from trivium.parallel.dtypes import NARROW
from trivium.parallel.processor import mkl_is_at_home

Tensor = torch.Tensor

# 0.5 (1 + tanh(z / 2)) = sigmoid(z), z = SLOPE (x + CUBIC x^3).
SLOPE, CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715
# Fewer elements are sooner done by one call; more are taken some at a time, that all stays in a cache.
LEAST, PIECE = 1 << 15, 1 << 17


def gelu(x: Tensor) -> Tensor:
    """x -> x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    taken_apart = _is_taken_apart(x) and not mkl_is_at_home()
    return _by_a_sigmoid(x) if taken_apart else F.gelu(x, approximate="tanh")


def _by_a_sigmoid(x: Tensor) -> Tensor:
    found: Tensor = _Gelu.apply(x, torch.is_grad_enabled() and x.requires_grad)
    return found


def _is_taken_apart(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.numel() >= LEAST


class Gelu:
    """As `parallel.row_product` takes an activation function."""

    def value(self, x: Tensor) -> Tensor:
        """GELU of x, to the bit as it is found again."""
        return _by_a_sigmoid(x) if _is_taken_apart(x) else F.gelu(x, approximate="tanh")

    def value_again(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """GELU of x, and its pullback; a processor's writes the slope in place of a large x."""
        if not _is_taken_apart(x):
            return F.gelu(x, approximate="tanh"), lambda grad: torch.ops.aten.gelu_backward(
                grad, x, approximate="tanh"
            )
        x = x.contiguous()
        y = torch.empty_like(x)
        _by_pieces(x, y, slope=x)
        return y, lambda grad: x.mul_(grad)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, wants_gradient: bool) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        slope = torch.empty_like(x) if wants_gradient else None
        _by_pieces(x, y, slope)
        if slope is not None:
            ctx.save_for_backward(slope)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors  # changed in place: a step runs its backward once
        return slope.mul_(grads[0]), None


def _by_pieces(x: Tensor, y: Tensor, slope: Tensor | None) -> None:
    """GELU of x into y, and its derivative into slope, which may be x itself."""
    pieces = (t.view(-1).split(PIECE) for t in (x, y, y if slope is None else slope))
    for piece, value, derivative in zip(*pieces, strict=True):
        _gelu_of(piece, value, None if slope is None else derivative)


def _gelu_of(x: Tensor, value: Tensor, derivative: Tensor | None) -> None:
    """Writes both, the derivative last; bf16 and fp16 are computed in fp32."""
    narrow = x.dtype in NARROW
    if narrow:
        x = x.float()
    square = x * x
    sigmoid = torch.addcmul(x, x, square, value=CUBIC).mul_(SLOPE).sigmoid_()
    y = torch.mul(x, sigmoid, out=None if narrow else value)
    if narrow:
        value.copy_(y)
    if derivative is not None:
        rest = torch.addcmul(y, y, sigmoid, value=-1)  # x sigmoid'(z)
        sigmoid.addcmul_(rest, square, value=3 * CUBIC * SLOPE)
        torch.add(sigmoid, rest, alpha=SLOPE, out=derivative)
