"""A row-split product cut along the positions: what one chunk leaves is reduced while the next is computed.

The software's counterpart of T3 (Pati et al., ASPLOS 2024), whose hardware reduces a product tile by tile. Every sum
is over the same numbers as in the uncut product, in the same order of ranks.

Legend: S positions, s positions of a rank outside the region, B sequences, I inputs here, H outputs.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch

from trivium.parallel.collectives import (
    PendingResult,
    all_gather,
    all_reduce_begin,
    reduce_scatter_begin,
)
from trivium.parallel.mesh import Group
from trivium.parallel.product import gradient_of_inputs, gradient_of_weight, product
from trivium.parallel.weight_gradients import WeightGradients

Tensor = torch.Tensor


class Cut(NamedTuple):
    """How: over which ranks, whether each keeps only its positions of the sum, and in how many chunks."""

    group: Group
    split_sequence: bool
    chunks: int


def cut_product(x: Tensor, weight: torch.nn.Parameter, later: WeightGradients, cut: Cut) -> Tensor:
    """x [S, B, I], weight [H, I] -> the sum over ranks of x W^T: [s, B, H] where the sequence is split, else [S, B, H].

    More chunks than there are positions to cut are as many as those.
    """
    takes = later.takes(weight)
    read = weight.detach() if takes else weight
    return _CutProduct.apply(x, read, cut, (weight, later if takes else None))


class _CutProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, cut: Cut, whose: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.cut, ctx.whose = cut, whose
        return product_in_chunks(x, weight, cut)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        grad = all_gather(grads[0].contiguous(), ctx.cut.group) if ctx.cut.split_sequence else grads[0]
        parameter, later = ctx.whose
        d_x = gradient_of_inputs(grad, weight)
        grad, x = grad.flatten(0, -2), x.flatten(0, -2)
        if later is not None:
            later.take(parameter, grad, x)
            return d_x, None, None, None
        return d_x, gradient_of_weight(grad, x), None, None


def product_in_chunks(x: Tensor, weight: Tensor, cut: Cut) -> Tensor:
    """Each chunk has the same positions of every rank's share, so that its reduce-scatter gives each rank its own."""
    shares = cut.group.size if cut.split_sequence else 1
    here = len(x) // shares
    out = x.new_empty((here, x.shape[1], len(weight)))
    under_way: list[tuple[slice, PendingResult]] = []
    for positions in _slices(here, cut.chunks):
        part = x.new_empty((shares * (positions.stop - positions.start), x.shape[1], len(weight)))
        for target, source in zip(part.chunk(shares), x.chunk(shares), strict=True):
            target.copy_(product(source[positions], weight))
        begin = reduce_scatter_begin if cut.split_sequence else all_reduce_begin
        under_way.append((positions, begin(part, cut.group)))
    for positions, pending in under_way:
        out[positions] = pending.wait()
    return out


def _slices(positions: int, chunks: int) -> list[slice]:
    """As equal as can be, none empty."""
    chunks = min(chunks, positions)
    ends = [positions * n // chunks for n in range(chunks + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]
