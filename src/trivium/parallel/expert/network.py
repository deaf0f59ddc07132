"""The gated feed-forward networks of experts, each of which computes its own rows.

Legend: T tokens, N rows of all experts, E experts, H hidden, F columns of an expert here.
"""

from typing import Any, NamedTuple

import torch

from trivium.kernels.activations import Activation
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.grouped import Part, parts_of
from trivium.parallel.expert.rows import Rows
from trivium.parallel.tensor.weight_gradients import WeightGradients

Tensor = torch.Tensor


class _How(NamedTuple):
    """Hidden in a tuple from autograd, which would make a leaf of a weight that is an argument."""

    rows: Rows
    function: Activation
    weights: tuple[torch.nn.Parameter, torch.nn.Parameter]
    later: WeightGradients | None
    parts: list[Part]


def networks(
    x: Tensor,
    weights: Tensor,
    rows: Rows,
    up: torch.nn.Parameter,
    down: torch.nn.Parameter,
    function: Activation,
    later: WeightGradients,
    arithmetic: Arithmetic,
) -> Tensor:
    """Return the sum of each token's experts times their weights [T, H].

    x [T, H], weights [N], up [E, 2, F, H], down [E, H, F]. The weights multiply what `down` reads, so that the backward
    needs no expert's result. It computes the function again, from what that read.
    """
    takes = later.takes(up) and later.takes(down)
    how = _How(rows, function, (up, down), later if takes else None, parts_of(rows.groups, arithmetic))
    matrices = up.flatten(1, 2), down
    first, second = (w.detach() for w in matrices) if takes else matrices
    found: Tensor = _Networks.apply(x, weights, first, second, how)
    return found


class _Networks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, up: Tensor, down: Tensor, how: _How) -> Tensor:
        factor, tokens, read = weights.unsqueeze(1), how.rows.tokens, []
        y = x.new_empty(len(tokens), x.shape[1])
        for part in how.parts:
            here, product = part.rows, part.arithmetic.product
            read.append(product(x.index_select(0, tokens[here]), part.of(up)))
            inner = how.function.value(read[-1]).mul_(factor[here])
            y[here] = product(inner, part.of(down))
        ctx.save_for_backward(x, weights, up, down, *read)
        ctx.how = how
        return how.rows.summed(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, up, down, *read = ctx.saved_tensors
        how, tokens, factor = ctx.how, ctx.how.rows.tokens, weights.unsqueeze(1)
        of_up, of_down = _Gradient(ctx, 0, up), _Gradient(ctx, 1, down)
        d_weights, d_x = torch.empty_like(weights), x.new_empty(len(tokens), x.shape[1])
        for part, given in zip(how.parts, read, strict=True):
            here, gradient = part.rows, part.arithmetic.gradient_of_inputs
            value, pullback = how.function.value_again(given)
            grad = grads[0].index_select(0, tokens[here])
            d_value = gradient(grad, part.of(down))
            d_weights[here] = (value * d_value).sum(-1, dtype=weights.dtype)
            of_down.add(part, grad, value.mul_(factor[here]))
            d_read = pullback(d_value.mul_(factor[here]))
            of_up.add(part, d_read, x.index_select(0, tokens[here]))
            d_x[here] = gradient(d_read, part.of(up))
        return how.rows.summed(d_x), d_weights, of_up.found, of_down.found, None


class _Gradient:
    """The gradient of one of the two weights, added up part by part where autograd wants it; the factors of the parts
    are handed on where it does not."""

    def __init__(self, ctx: Any, number: int, weight: Tensor) -> None:
        how: _How = ctx.how
        self.parameter, self.later, self.last = how.weights[number], how.later, how.parts[-1]
        self.found = torch.zeros_like(weight) if ctx.needs_input_grad[2 + number] else None

    def add(self, part: Part, grad: Tensor, x: Tensor) -> None:
        """Add grad^T x of a part; grad [n, O], x [n, I]."""
        if self.later is not None:
            more = part is not self.last
            self.later.take(self.parameter, grad, x, part.arithmetic, matrix=part.matrix, more=more)
        elif self.found is not None:
            part.arithmetic.gradient_of_weight(grad, x, into=part.of(self.found))
