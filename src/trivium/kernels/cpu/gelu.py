"""GELU in its tanh form, as in GPT-2 and Megatron.

On a processor it is x times a sigmoid, of which PyTorch's takes a quarter of the time of its own GELU there; the
derivative, known with it, takes the place of x, in its memory too, and is kept for the backward. A compiler fuses
PyTorch's own.
"""

import math
from typing import Any

import torch

from trivium.kernels.activations import Gelu, Pullback
from trivium.kernels.dtypes import NARROW

Tensor = torch.Tensor

# 0.5 (1 + tanh(z / 2)) = sigmoid(z), z = SLOPE (x + CUBIC x^3).
SLOPE, CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715
# Fewer elements are sooner done by one call; more are taken some at a time, that all stays in a cache.
MIN_ELEMENTS, PIECE_ELEMENTS = 1 << 15, 1 << 17


class CpuGelu(Gelu):
    """GELU in its tanh form, of a large x by a sigmoid. Such an x is used up where its gradient is wanted: of a product
    nobody else needs it."""

    def __init__(self) -> None:
        super().__init__("tanh")

    def __call__(self, x: Tensor) -> Tensor:
        """Return GELU of x: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
        if not _is_taken_apart(x):
            return super().__call__(x)
        found: Tensor = _Gelu.apply(x, torch.is_grad_enabled() and x.requires_grad)
        return found

    def value_again(self, x: Tensor) -> tuple[Tensor, Pullback]:
        """Return GELU of x, and its pullback, which writes the slope in place of a large x."""
        if not _is_taken_apart(x):
            return super().value_again(x)
        x = x.contiguous()
        y = torch.empty_like(x)
        _by_pieces(x, y, slope=x)
        return y, lambda grad: x.mul_(grad)


def _is_taken_apart(x: Tensor) -> bool:
    return x.numel() >= MIN_ELEMENTS and not torch.compiler.is_compiling()


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, wants_gradient: bool) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        _by_pieces(x, y, slope=x if wants_gradient else None)
        if wants_gradient:
            ctx.save_for_backward(x.detach())
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors  # changed in place: a step runs its backward once
        return slope.mul_(grads[0]), None


def _by_pieces(x: Tensor, y: Tensor, slope: Tensor | None) -> None:
    """GELU of x into y, and its derivative into slope, which may be x itself; bf16 and fp16 are computed in fp32."""
    narrow = x.dtype in NARROW
    # What is computed on the way, in memory that stays in the cache: square, sigmoid, and of narrow numbers x and y.
    room = torch.empty(4 if narrow else 2, min(PIECE_ELEMENTS, x.numel()), dtype=torch.float32 if narrow else x.dtype)
    pieces = (t.view(-1).split(PIECE_ELEMENTS) for t in (x, y, y if slope is None else slope))
    for piece, value, derivative in zip(*pieces, strict=True):
        rows = room[:, : len(piece)]
        if not narrow:
            _gelu_of(piece, value, None if slope is None else derivative, rows)
            continue
        _gelu_of(rows[2].copy_(piece), rows[3], None if slope is None else rows[2], rows)
        value.copy_(rows[3])
        if slope is not None:
            derivative.copy_(rows[2])


def _gelu_of(x: Tensor, y: Tensor, slope: Tensor | None, room: Tensor) -> None:
    """Writes y, then the slope, which may be x; room: of two more like x."""
    square, sigmoid = torch.mul(x, x, out=room[0]), room[1]
    torch.addcmul(x, x, square, value=CUBIC, out=sigmoid).mul_(SLOPE).sigmoid_()
    torch.mul(x, sigmoid, out=y)
    if slope is not None:
        rest = torch.addcmul(y, y, sigmoid, value=-1, out=slope)  # x sigmoid'(z)
        sigmoid.addcmul_(rest, square, value=3 * CUBIC * SLOPE)
        torch.add(sigmoid, rest, alpha=SLOPE, out=slope)
