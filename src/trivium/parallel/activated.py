"""A product of what an activation function gives, which the backward computes again instead of keeping it.

Kept is what the function read: half of what is kept otherwise, for GELU and for SwiGLU. The backward finds the value
and what the function's own gradient needs together.

Legend: S positions, s positions of a rank outside the region, B sequences, R what the function reads, I what it gives,
H outputs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from trivium.parallel.collectives import all_gather
from trivium.parallel.product import gradient_of_inputs, gradient_of_weight, product
from trivium.parallel.row_chunks import Cut, product_in_chunks
from trivium.parallel.weight_gradients import WeightGradients

Tensor = torch.Tensor
Pullback = Callable[[Tensor], Tensor]


class ActivationFunction(Protocol):
    """x [..., R] -> [..., I]."""

    def value(self, x: Tensor) -> Tensor:
        """The value alone, without a graph."""

    def value_again(self, x: Tensor) -> tuple[Tensor, Pullback]:
        """The value, and what makes the gradient of x of the value's gradient; may write into x."""


class _How(NamedTuple):
    """In a tuple, so that autograd does not make a leaf of the weight (see weight_gradients)."""

    function: ActivationFunction
    cut: Cut | None
    weight: torch.nn.Parameter
    later: WeightGradients | None


def activated_product(
    x: Tensor,
    function: ActivationFunction,
    weight: torch.nn.Parameter,
    bias: Tensor | None,
    later: WeightGradients,
    cut: Cut | None = None,
) -> Tensor:
    """x [S, B, R], weight [H, I], bias [H] -> function(x) W^T + bias [S, B, H].

    With a cut, which takes no bias, each chunk's sum over the ranks is begun while the next is computed: [s, B, H].
    """
    takes = later.takes(weight)
    how = _How(function, cut, weight, later if takes else None)
    found: Tensor = _ActivatedProduct.apply(x, weight.detach() if takes else weight, bias, how)
    return found


class _ActivatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: _How) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.has_bias = how, bias is not None
        value = how.function.value(x)
        return product(value, weight, bias) if how.cut is None else product_in_chunks(value, weight, how.cut)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        function, cut, parameter, later = ctx.how
        (grad,) = grads
        if cut is not None and cut.split_sequence:
            grad = all_gather(grad.contiguous(), cut.group)
        value, pullback = function.value_again(x)
        d_x = pullback(gradient_of_inputs(grad, weight))
        rows, value = grad.flatten(0, -2), value.flatten(0, -2)
        d_bias = rows.sum(0) if ctx.has_bias else None
        if later is None:
            return d_x, gradient_of_weight(rows, value), d_bias, None
        later.take(parameter, rows, value)
        return d_x, None, d_bias, None
