"""RMSNorm over all heads of queries, and over all heads of keys, which tensor ranks divide: sums of squares are added
over the ranks. Both at once, as one message then takes the sums of both, forward and backward.

Legend: B sequences, S positions, N heads here, D head width; keys may have fewer heads.
"""

from collections.abc import Iterator
from typing import Any

import torch

from trivium.comms.collectives import all_reduce_
from trivium.comms.group import Group

Tensor = torch.Tensor

BLOCK_ELEMENTS = 1 << 17  # elements on a processor, so that what is in between stays in a cache


def norm_over_heads(
    q: Tensor, k: Tensor, of_q: Tensor, of_k: Tensor, *, epsilon: float, group: Group
) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x²) + epsilon) · weight, the mean over the heads of all ranks and their columns.

    q, k [B, N, S, D]; of_q, of_k: the weights of the columns here [N D]. Computed in fp32 where x is narrower, and
    rounded once. What comes out lies in memory positions first.
    """
    found: tuple[Tensor, Tensor] = _NormOverHeads.apply(q, k, of_q, of_k, epsilon, group)
    return found


class _NormOverHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, of_q: Tensor, of_k: Tensor, epsilon: float, group: Group
    ) -> tuple[Tensor, ...]:
        wide = torch.promote_types(q.dtype, torch.float32)
        scales = q.new_empty(2, q.shape[2], q.shape[0], 1, dtype=wide)  # S B of each
        for x, scale in zip((q, k), scales, strict=True):
            for given, into in _some(_rows(x), scale):
                torch.linalg.vector_norm(given.to(wide), dim=-1, keepdim=True, out=into)
                into.square_()
        all_reduce_(scales, group)
        every = []
        for x, weight, scale in zip((q, k), (of_q, of_k), scales, strict=True):
            scale.div_(_columns(x, group)).add_(epsilon).rsqrt_()
            rows = _rows(x)
            every.append(torch.empty(rows.shape, dtype=x.dtype, device=x.device))
            for given, factor, into in _some(rows, scale, every[-1]):
                into.copy_((given * factor).mul_(weight))
        ctx.save_for_backward(q, k, of_q, of_k, scales)
        ctx.group = group
        return tuple(_heads(y) for y in every)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *saved, scales = ctx.saved_tensors
        wide, along = scales.dtype, torch.empty_like(scales)
        every = list(zip(saved[:2], saved[2:], grads, scales, along, strict=True))
        d_weights, d_heads = [], []
        for x, weight, grad, scale, sums in every:
            w = weight.to(wide)
            d_weight = torch.zeros_like(w)
            for given, factor, change, into in _some(_rows(x), scale, _rows(grad), sums):
                product = (given * factor).mul_(change)
                d_weight += product.sum(0)
                into.copy_(torch.mv(product, w).unsqueeze(-1))
            d_weights.append(d_weight.to(weight.dtype))
        all_reduce_(along, ctx.group)
        for x, weight, grad, scale, sums in every:
            w, rows = weight.to(wide), _rows(x)
            sums.div_(-_columns(x, ctx.group))
            d_heads.append(torch.empty(rows.shape, dtype=x.dtype, device=x.device))
            for given, factor, change, total, into in _some(rows, scale, _rows(grad), sums, d_heads[-1]):
                into.copy_(torch.addcmul(change * w, given * factor, total).mul_(factor))
        return (*map(_heads, d_heads), *d_weights, None, None)


def _rows(x: Tensor) -> Tensor:
    """[B, N, S, D] -> [S, B, N, D], the order in which they lie in memory."""
    return x.permute(2, 0, 1, 3)


def _heads(rows: Tensor) -> Tensor:
    """[S, B, N, D] -> [B, N, S, D]."""
    return rows.permute(1, 2, 0, 3)


def _columns(x: Tensor, group: Group) -> int:
    """Return the number of columns of all heads on all ranks."""
    return x.shape[1] * x.shape[3] * group.size


def _some(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Rows of the same positions of each, heads side by side: some at a time; on accelerators, where each operation is
    a launch, all at once. What is written to must be contiguous."""
    first = tensors[0]
    step = max(1, BLOCK_ELEMENTS // first[0].numel()) if first.device.type == "cpu" else len(first)
    for parts in zip(*(t.split(step) for t in tensors), strict=True):
        yield tuple(part.flatten(2).flatten(0, 1) for part in parts)
