"""The gated feed-forward networks of experts, each of which computes its own rows.

Legend: T tokens, N rows of all experts, E experts, H hidden, F columns of an expert here.
"""

from typing import Any, NamedTuple

import torch

from trivium.kernels.activations import Activation
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.grouped import grouped
from trivium.parallel.expert.rows import Rows
from trivium.parallel.tensor.weight_gradients import WeightGradients

Tensor = torch.Tensor


class _How(NamedTuple):
    """Hidden in a tuple from autograd, which would make a leaf of a weight that is an argument."""

    rows: Rows
    function: Activation
    weights: tuple[torch.nn.Parameter, torch.nn.Parameter]
    later: WeightGradients | None
    arithmetics: tuple[Arithmetic, Arithmetic]  # of both matrices


def networks(
    x: Tensor,
    weights: Tensor,
    rows: Rows,
    up: torch.nn.Parameter,
    down: torch.nn.Parameter,
    function: Activation,
    later: WeightGradients,
    arithmetics: tuple[Arithmetic, Arithmetic],
) -> Tensor:
    """Return the sum of each token's experts times their weights [T, H].

    x [T, H], weights [N], up [E, 2, F, H], down [E, H, F]. The weights multiply what `down` reads, so that the backward
    needs no expert's result. It computes the function again, from what that read.
    """
    takes = later.takes(up) and later.takes(down)
    first, second = (grouped(arithmetic, rows.groups) for arithmetic in arithmetics)
    how = _How(rows, function, (up, down), later if takes else None, (first, second))
    matrices = up.flatten(1, 2), down
    of_up, of_down = (w.detach() for w in matrices) if takes else matrices
    found: Tensor = _Networks.apply(x, weights, of_up, of_down, how)
    return found


class _Networks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, up: Tensor, down: Tensor, how: _How) -> Tensor:
        read = how.arithmetics[0].product(how.rows.spread(x), up)
        ctx.save_for_backward(x, weights, up, down, read)
        ctx.how = how
        inner = how.function.value(read).mul_(weights.unsqueeze(1))
        return how.rows.summed(how.arithmetics[1].product(inner, down))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, up, down, read = ctx.saved_tensors
        rows, function, parameters, later, (of_up, of_down) = ctx.how
        factor = weights.unsqueeze(1)
        grad = rows.spread(grads[0])
        inner, pullback = function.value_again(read)
        d_inner = of_down.gradient_of_inputs(grad, down)
        d_weights = (inner * d_inner).sum(-1, dtype=weights.dtype)
        d_read = pullback(d_inner.mul_(factor))
        d_down = _of_weight(ctx.needs_input_grad[3], parameters[1], grad, inner.mul_(factor), later, of_down)
        del grad, inner, d_inner
        d_up = _of_weight(ctx.needs_input_grad[2], parameters[0], d_read, rows.spread(x), later, of_up)
        d_x = rows.summed(of_up.gradient_of_inputs(d_read, up))
        return d_x, d_weights, None if d_up is None else d_up.view_as(up), d_down, None


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
