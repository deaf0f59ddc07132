"""Causal attention of fp32 and fp64 activations on a processor: PyTorch's fused kernel, for some queries at a time.

Each block of queries is given the keys before its end only. Called once for all queries, the kernel leaves keys out
512 at a time: at 256 positions it computes every score and then hides half of them.

Where MKL is at home the products of what is hidden take less than more calls do, and all queries are one block. If
their positions lie far apart, as a product of several sequences leaves them, it is one of a copy in which each head's
are next to each other (15 to 25 % of the kernel's time on an Intel Xeon).

Legend: B sequences, N heads, S positions, D head width, K keys that a block sees.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch

from trivium.parallel import processor_kernel
from trivium.parallel.processor import mkl_is_at_home

Tensor = torch.Tensor

QUERIES = 64  # of a block
# Fewer scores or positions, and the calls take longer than they save; more positions, and the kernel saves as much.
LEAST_SCORES, LEAST_POSITIONS, MOST_POSITIONS = 1 << 18, 3 * QUERIES, 1024
FAR_APART = 4096  # bytes from a position to the next: a page, and the same places of a cache


def suits(qkv: Tensor) -> bool:
    """Whether queries, keys and values [3, B, N, S, D] are attended faster here."""
    _, B, N, S, _ = qkv.shape
    return (
        qkv.dtype in (torch.float32, torch.float64)
        and qkv.device.type == "cpu"
        and B * N * S * S >= LEAST_SCORES
        and (mkl_is_at_home() or LEAST_POSITIONS <= S <= MOST_POSITIONS)
    )


def attend(qkv: Tensor) -> Tensor:
    """Queries, keys and values [3, B, N, S, D] -> [B, N, S, D], where no position sees a later one.

    In memory the result has its positions first, as what goes on to the next product.
    """
    return (_Whole if mkl_is_at_home() else _InBlocks).apply(qkv)


def empty_gradient(qkv: Tensor) -> Tensor:
    """Of queries, keys and values: in memory as the product made them, so that its gradient needs no copy."""
    _, B, N, S, D = qkv.shape
    return qkv.new_empty(S, B, N, 3, D).permute(3, 1, 2, 0, 4)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> Tensor:
        if qkv.stride(3) * qkv.element_size() >= FAR_APART:
            qkv = qkv.contiguous()
        q, k, v = qkv.unbind(0)
        found, log_sums = processor_kernel.attend(q, k, v, causal=True)
        # The kernel's lies in memory as the queries do.
        out: Tensor = found.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
        ctx.save_for_backward(qkv, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        qkv, out, log_sums = ctx.saved_tensors
        q, k, v = qkv.unbind(0)
        d_qkv = empty_gradient(qkv)
        found = processor_kernel.gradients(grads[0], q, k, v, out, log_sums, causal=True)
        for into, gradient in zip(d_qkv.unbind(0), found, strict=True):
            into.copy_(gradient)
        return d_qkv


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> Tensor:
        q, k, v = qkv.unbind(0)
        B, N, S, D = q.shape
        out, later = qkv.new_empty(S, B, N, D).permute(1, 2, 0, 3), _later(qkv)
        # In one tensor: small ones that stay leave holes between large ones that go.
        log_sums = qkv.new_empty(B, N, S)
        for a, b in _blocks(S):
            out[:, :, a:b], log_sums[:, :, a:b] = processor_kernel.attend(
                q[:, :, a:b], k[:, :, :b], v[:, :, :b], hiding=later[a - b :, -b:]
            )
        ctx.save_for_backward(qkv, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        qkv, out, log_sums = ctx.saved_tensors
        (q, k, v), (grad,), later = qkv.unbind(0), grads, _later(qkv)
        d_qkv = empty_gradient(qkv)
        d_kv: list[Tensor] = []
        for a, b in reversed(list(_blocks(q.shape[2]))):
            d_qkv[0, :, :, a:b], of_k, of_v = processor_kernel.gradients(
                *(grad[:, :, a:b], q[:, :, a:b], k[:, :, :b], v[:, :, :b]),
                *(out[:, :, a:b], log_sums[:, :, a:b]),
                hiding=later[a - b :, -b:],
            )
            if not d_kv:  # of the last block, which sees every key
                d_kv = [of_k, of_v]
            else:
                for total, of_block in zip(d_kv, (of_k, of_v), strict=True):
                    total[:, :, :b] += of_block
        d_qkv[1], d_qkv[2] = d_kv
        return d_qkv


def _blocks(S: int) -> Iterator[tuple[int, int]]:
    for start in range(0, S, QUERIES):
        yield start, min(start + QUERIES, S)


def _later(qkv: Tensor) -> Tensor:
    """[QUERIES, S], minus infinity where a key is later than the query, both counted from the last: its last K
    columns are what is added to the scores of a block that sees K keys."""
    later = qkv.new_zeros(QUERIES, qkv.shape[3])
    later[:, -QUERIES:] = torch.full((QUERIES, QUERIES), -math.inf, dtype=qkv.dtype).triu_(1)
    return later
