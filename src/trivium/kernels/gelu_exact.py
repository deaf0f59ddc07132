"""GELU in its exact form, by the error function (arXiv 1606.08415)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def gelu_exact(x: Tensor) -> Tensor:
    """x -> x / 2 (1 + erf(x / sqrt(2)))."""
    return F.gelu(x)


class GeluExact:
    """As `parallel.tensor.row_product` takes an activation function."""

    def value(self, x: Tensor) -> Tensor:
        """GELU of x."""
        return F.gelu(x)

    def value_again(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """GELU of x, and its pullback."""
        return F.gelu(x), lambda grad: torch.ops.aten.gelu_backward(grad, x)
