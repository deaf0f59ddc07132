"""Products of a rank with its part of a weight: of a row-split one the input may be computed again, and it may be cut
along the positions.

Of an activation function's value what the function read is kept: half of what is kept otherwise, for GELU and for
SwiGLU. The backward finds the value and what the function's own gradient needs together.

Where it is cut, what one chunk leaves is reduced while the next is computed: the software's counterpart of T3 (Pati et
al., ASPLOS 2024), whose hardware reduces a product tile by tile. Every sum is over the same numbers as in the uncut
product, in the same order of ranks. In a ring the pieces are those of the ranks, forward and backward.

Legend: S positions, s positions of a rank outside the region, B sequences, R what the function reads, I inputs here,
H outputs.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch

from trivium.comms.collectives import all_gather, all_reduce_begin, reduce_scatter_begin
from trivium.comms.group import Group, PendingResult
from trivium.kernels.activations import Activation
from trivium.kernels.arithmetic import Arithmetic
from trivium.parallel.tensor.ring import gathered_product, scattered_product
from trivium.parallel.tensor.weight_gradients import WeightGradients

Tensor = torch.Tensor


class Cut(NamedTuple):
    """The ranks over which a product is summed in chunks, whether each keeps only its positions of the sum, and the
    number of chunks. ring: whether the chunks are the positions of each rank, which go round a ring."""

    group: Group
    split_sequence: bool
    chunks: int
    ring: bool = False


class _How(NamedTuple):
    """Hidden in a tuple from autograd, which would make a leaf of a weight that is an argument."""

    function: Activation | None
    cut: Cut | None
    weight: torch.nn.Parameter
    later: WeightGradients | None
    arithmetic: Arithmetic


def linear(
    x: Tensor, weight: torch.nn.Parameter, bias: Tensor | None, later: WeightGradients, arithmetic: Arithmetic
) -> Tensor:
    """x [..., I] times weight [..., O, I] (leading dimensions side by side) plus bias."""
    matrix = weight if weight.dim() == 2 else weight.flatten(0, -2)
    if not later.takes(weight):
        return arithmetic.product(x, matrix, bias)
    found: Tensor = _Product.apply(x, matrix.detach(), bias, _How(None, None, weight, later, arithmetic))
    return found


def row_product(
    x: Tensor,
    weight: torch.nn.Parameter,
    bias: Tensor | None,
    later: WeightGradients,
    arithmetic: Arithmetic,
    *,
    function: Activation | None = None,
    cut: Cut | None = None,
) -> Tensor:
    """x [S, B, I], weight [H, I], bias [H] -> x W^T + bias [S, B, H]; with a function, of function(x), x [S, B, R].

    With a cut, which takes no bias, the sum of that over the ranks: [s, B, H] where the sequence is split, else
    [S, B, H]. More chunks than there are positions to cut are as many as those.
    """
    takes = later.takes(weight)
    how = _How(function, cut, weight, later if takes else None, arithmetic)
    found: Tensor = _Product.apply(x, weight.detach() if takes else weight, bias, how)
    return found


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: _How) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = how
        value = x if how.function is None else how.function.value(x)
        product = how.arithmetic.product
        if how.cut is None:
            return product(value, weight, bias)
        if how.cut.ring:
            return scattered_product(value, how.cut.group, lambda piece: product(piece, weight))
        return _in_chunks(value, weight, how.cut, how.arithmetic)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        (x, weight), (grad,) = ctx.saved_tensors, grads
        function, cut, parameter, later, arithmetic = ctx.how
        value, pullback = (x, None) if function is None else function.value_again(x)
        if cut is not None and cut.ring:
            d_x, grad = gathered_product(grad, cut.group, lambda piece: arithmetic.gradient_of_inputs(piece, weight))
        else:
            grad = all_gather(grad.contiguous(), cut.group) if cut is not None and cut.split_sequence else grad
            d_x = arithmetic.gradient_of_inputs(grad, weight)
        d_x = d_x if pullback is None else pullback(d_x)
        rows, value = grad.flatten(0, -2), value.flatten(0, -2)
        d_bias = arithmetic.gradient_of_bias(rows) if ctx.needs_input_grad[2] else None
        if later is None:
            wanted = ctx.needs_input_grad[1]
            return d_x, arithmetic.gradient_of_weight(rows, value) if wanted else None, d_bias, None
        later.take(parameter, rows, value, arithmetic)
        return d_x, None, d_bias, None


def _in_chunks(x: Tensor, weight: Tensor, cut: Cut, arithmetic: Arithmetic) -> Tensor:
    """Return the product summed over ranks, chunk by chunk. Each chunk has the same positions of every rank's share, so
    that its reduce-scatter gives each rank its own."""
    shares = cut.group.size if cut.split_sequence else 1
    by_share = x.unflatten(0, (shares, -1))
    here = by_share.shape[1]
    out = x.new_empty((here, x.shape[1], len(weight)))
    begin = reduce_scatter_begin if cut.split_sequence else all_reduce_begin
    under_way: list[tuple[slice, PendingResult]] = []
    for positions in _slices(here, cut.chunks):
        part = arithmetic.product(by_share[:, positions].flatten(0, 1), weight)
        under_way.append((positions, begin(part, cut.group)))
    for positions, pending in under_way:
        out[positions] = pending.wait()
    return out


def _slices(positions: int, chunks: int) -> list[slice]:
    """Return slices of the positions of nearly equal size, none empty."""
    chunks = min(chunks, positions)
    ends = [positions * n // chunks for n in range(chunks + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]
