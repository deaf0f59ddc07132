"""SwiGLU (arXiv 2002.05202): one half of a product gates the other.

Legend: E columns of either half, the gate first.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def swiglu(x: Tensor) -> Tensor:
    """x [..., 2 E] -> silu(gate) up [..., E]. Its backward keeps x alone: silu(gate) is cheaper computed again than
    kept, E numbers a position, and the gradients of both halves are written side by side."""
    if torch.compiler.is_compiling():  # which chooses so itself
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
    found: Tensor = _SwiGlu.apply(x)
    return found


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate, up = x.chunk(2, dim=-1)
        found = torch.empty_like(x)
        d_gate, d_up = found.chunk(2, dim=-1)
        torch.mul(grad, F.silu(gate), out=d_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=d_gate)
        return found


class SwiGlu:
    """As `parallel.row_product` takes an activation function."""

    def value(self, x: Tensor) -> Tensor:
        """SwiGLU of x."""
        return swiglu(x)

    def value_again(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """SwiGLU of x, and its pullback."""
        gate, up = x.chunk(2, dim=-1)
        silu = F.silu(gate)

        def pullback(grad: Tensor) -> Tensor:
            return torch.cat([torch.ops.aten.silu_backward(grad * up, gate), grad * silu], dim=-1)

        return silu * up, pullback
