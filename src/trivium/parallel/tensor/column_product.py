"""A column-parallel product with its collectives, which overlap with products in the backward.

Under sequence parallelism only this rank's positions of the inputs are kept. The backward gathers all of them again
while it computes the gradient of the inputs, and sums that over the ranks while it computes the weight's
(Korthikanti et al., arXiv 2205.05198, section 4.2.2).

In a ring the forward gathers piece by piece while it multiplies. The backward reduces the gradient of the inputs in the
same way if the gradient of the weight is deferred or not wanted. Otherwise its collectives already overlap with full
products, and pieces would hide no more.

Legend: S positions, s positions of a rank outside the region, B sequences, I inputs, O outputs here.
"""

from typing import Any, NamedTuple

import torch

from trivium.comms.collectives import all_gather, all_gather_begin, all_reduce_begin, reduce_scatter_begin
from trivium.comms.group import Group, PendingResult
from trivium.kernels.arithmetic import Arithmetic
from trivium.parallel.tensor.ring import gathered_product, scattered_product
from trivium.parallel.tensor.weight_gradients import WeightGradients

Tensor = torch.Tensor


class Entry(NamedTuple):
    """The ranks over which the inputs enter a tensor region, and whether each has only its own positions of them.
    ring: whether these go round a ring beside the products."""

    group: Group
    split_sequence: bool
    ring: bool = False


class _How(NamedTuple):
    """Hidden in a tuple from autograd, which would make a leaf of a weight that is an argument."""

    entry: Entry
    weight: torch.nn.Parameter
    later: WeightGradients | None
    arithmetic: Arithmetic


def column_product(
    x: Tensor,
    weight: torch.nn.Parameter,
    bias: Tensor | None,
    later: WeightGradients,
    arithmetic: Arithmetic,
    entry: Entry,
) -> Tensor:
    """x [s, B, I] where the sequence is split, else [S, B, I]; weight [..., O, I] (leading dimensions side by side),
    bias [O] -> x W^T + bias [S, B, O]."""
    matrix = weight if weight.dim() == 2 else weight.flatten(0, -2)
    takes = later.takes(weight)
    how = _How(entry, weight, later if takes else None, arithmetic)
    return _ColumnProduct.apply(x, matrix.detach() if takes else matrix, bias, how)


class _ColumnProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: _How) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = how
        group, split_sequence, ring = how.entry
        if ring:
            return gathered_product(x, group, lambda piece: how.arithmetic.product(piece, weight, bias))[0]
        return how.arithmetic.product(all_gather(x, group) if split_sequence else x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        (x, weight), (grad,) = ctx.saved_tensors, grads
        (group, split_sequence, ring), parameter, later, arithmetic = ctx.how
        # Deferred weight gradients gather their inputs when they are computed.
        puts_off = later is not None and later.separate
        of_weight, of_bias = ctx.needs_input_grad[1:3]
        again = split_sequence and not puts_off and (of_weight or later is not None)
        whole = all_gather_begin(x, group) if again else PendingResult(None, x)
        if ring and not again:
            d_x = scattered_product(grad, group, lambda piece: arithmetic.gradient_of_inputs(piece, weight))
            summed = PendingResult(None, d_x)
        else:
            d_x = arithmetic.gradient_of_inputs(grad, weight)
            summed = reduce_scatter_begin(d_x, group) if split_sequence else all_reduce_begin(d_x, group)
        rows, d_weight = grad.flatten(0, -2), None
        d_bias = arithmetic.gradient_of_bias(rows) if of_bias else None
        if later is None:
            d_weight = arithmetic.gradient_of_weight(rows, whole.wait().flatten(0, -2)) if of_weight else None
        else:
            later.take(parameter, rows, whole.wait(), arithmetic, group if split_sequence and puts_off else None)
        return summed.wait(), d_weight, d_bias, None
