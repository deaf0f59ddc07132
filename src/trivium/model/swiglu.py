"""SwiGLU (arXiv 2002.05202): one half of a product gates the other.

Legend: E columns of either half, the gate first.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def swiglu(x: Tensor) -> Tensor:
    """x [..., 2 E] -> silu(gate) up [..., E]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


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
