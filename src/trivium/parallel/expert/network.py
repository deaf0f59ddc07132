"""The gated feed-forward networks of experts, each of which computes its own rows.

Legend: T tokens, N rows of all experts, E experts, H hidden, F columns of an expert here.
"""

from typing import Any, NamedTuple

import torch

from trivium.kernels.activations import Activation
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.grouped import Part, grouped, parts_of
from trivium.parallel.expert.rows import Rows
from trivium.parallel.tensor.weight_gradients import WeightGradients

Tensor = torch.Tensor


class _How(NamedTuple):
    """Hidden in a tuple from autograd, which would make a leaf of a weight that is an argument."""

    rows: Rows
    function: Activation
    weights: tuple[torch.nn.Parameter, torch.nn.Parameter]
    later: WeightGradients | None
    arithmetic: Arithmetic
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
    parts = parts_of(rows.groups, arithmetic)
    how = _How(rows, function, (up, down), later if takes else None, grouped(arithmetic, rows.groups), parts)
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
            read.append(part.arithmetic.product(x.index_select(0, tokens[part.rows]), up[part.matrices]))
            inner = how.function.value(read[-1]).mul_(factor[part.rows])
            y[part.rows] = part.arithmetic.product(inner, down[part.matrices])
        ctx.save_for_backward(x, weights, up, down, *read)
        ctx.how = how
        return how.rows.summed(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, up, down, *read = ctx.saved_tensors
        rows, function, parameters, later, arithmetic, parts = ctx.how
        factor, N = weights.unsqueeze(1), len(weights)
        grad, d_weights = rows.spread(grads[0]), torch.empty_like(weights)
        inner, d_read, d_x = (x.new_empty(N, columns) for columns in (down.shape[2], up.shape[1], x.shape[1]))
        for part, given in zip(parts, read, strict=True):
            here = part.rows
            value, pullback = function.value_again(given)
            d_value = part.arithmetic.gradient_of_inputs(grad[here], down[part.matrices])
            d_weights[here] = (value * d_value).sum(-1, dtype=weights.dtype)
            inner[here] = value.mul_(factor[here])
            d_read[here] = pullback(d_value.mul_(factor[here]))
            d_x[here] = part.arithmetic.gradient_of_inputs(d_read[here], up[part.matrices])
        d_down = _of_weight(ctx.needs_input_grad[3], parameters[1], grad, inner, later, arithmetic)
        del grad, inner
        d_up = _of_weight(ctx.needs_input_grad[2], parameters[0], d_read, rows.spread(x), later, arithmetic)
        return rows.summed(d_x), d_weights, None if d_up is None else d_up.view_as(up), d_down, None


def _of_weight(
    wanted: bool,
    parameter: torch.nn.Parameter,
    grad: Tensor,
    x: Tensor,
    later: WeightGradients | None,
    arithmetic: Arithmetic,
) -> Tensor | None:
    """Return the gradient of a weight [E, O, I] where autograd wants it; hand its factors on where it does not."""
    if later is not None:
        later.take(parameter, grad, x, arithmetic)
        return None
    return arithmetic.gradient_of_weight(grad, x).view(-1, grad.shape[1], x.shape[1]) if wanted else None
