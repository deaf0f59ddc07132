"""Causal attention through a window: each query sees itself and so many before it.

On a processor by PyTorch's fused kernel, for some queries at a time, each block of them given the keys in its reach
only; on an accelerator by the fused kernel that knows windows, and where there is none for the numbers, behind a mask.

Legend: B sequences, N heads, G key-value heads, S positions, D head width, Q queries of a block.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from trivium.parallel import fused_tile, processor_kernel

Tensor = torch.Tensor

QUERIES = 128  # of a block


def suits(q: Tensor) -> bool:
    """Whether the processor's kernel is there, for some queries at a time."""
    return q.device.type == "cpu"


def attend(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """q [B, N, S, D], k and v [B, G, S, D] -> [B, N, S, D]: each query sees its own position and window - 1 before.

    What it keeps for the backward is what attention to all positions keeps."""
    if suits(q):
        found: Tensor = _InReach.apply(q, k, v, window)
        return found
    if fused_tile.suits(q) and not torch.compiler.is_compiling():
        return _by_accelerator(q, k, v, window)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=_seen(q.shape[2], q.shape[2], window, q.device))


class Block(NamedTuple):
    """Queries of some positions, and the keys that one of them sees."""

    queries: slice
    keys: slice


class _InReach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        out, hiding = torch.empty_like(q), _hiding(q, window)
        # In one tensor: small ones that stay leave holes between large ones that go.
        log_sums = q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))
        for here, there in _blocks(q.shape[2], window):
            mask = hiding[_columns(here, there, window)]
            given = q[:, :, here], k[:, :, there], v[:, :, there]
            out[:, :, here], log_sums[:, :, here] = processor_kernel.attend(*given, hiding=mask)
        ctx.save_for_backward(q, k, v, out, log_sums)
        ctx.window = window
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, log_sums = ctx.saved_tensors
        (grad,), d_q, hiding = grads, torch.empty_like(q), _hiding(q, ctx.window)
        # A key's gradient comes from several blocks: added in fp32 at least.
        d_k, d_v = (torch.zeros_like(x, dtype=log_sums.dtype) for x in (k, v))
        for here, there in _blocks(q.shape[2], ctx.window):
            mask = hiding[_columns(here, there, ctx.window)]
            given = q[:, :, here], k[:, :, there], v[:, :, there]
            known = out[:, :, here], log_sums[:, :, here]
            d_q[:, :, here], of_k, of_v = processor_kernel.gradients(
                grad[:, :, here], *given, *known, hiding=mask
            )
            d_k[:, :, there] += of_k
            d_v[:, :, there] += of_v
        return d_q, d_k.to(k.dtype), d_v.to(v.dtype), None


def _blocks(S: int, window: int) -> Iterator[Block]:
    for start in range(0, S, QUERIES):
        stop = min(start + QUERIES, S)
        yield Block(slice(start, stop), slice(max(0, start - window + 1), stop))


def _hiding(q: Tensor, window: int) -> Tensor:
    """[Q, window - 1 + Q]: what is added to the scores of a block whose first query sees a whole window."""
    seen = _seen(QUERIES, window - 1 + QUERIES, window, q.device)
    return q.new_zeros(seen.shape).masked_fill_(~seen, -math.inf)


def _columns(here: slice, there: slice, window: int) -> tuple[slice, slice]:
    """The part of `_hiding` that is of these queries and keys: the first blocks have fewer keys, the last one fewer
    queries."""
    first = here.start - window + 1  # position of the first column
    return slice(0, here.stop - here.start), slice(there.start - first, there.stop - first)


def _seen(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """[queries, keys], true where a query sees a key; the last of both are of the same position."""
    before = keys - queries  # keys before the first query
    whole = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return whole.tril(before).triu(before - window + 1)


def _by_accelerator(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """By the kernel under PyTorch's own fused attention, which alone takes a window; it has positions before heads."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, *_ = torch.ops.aten._flash_attention_forward(
        *(q, k, v, None, None, q.shape[1], k.shape[1]),
        *(0.0, False, False),  # dropout; not causal by itself, but by the window: none to the right
        window_size_left=window - 1,
        window_size_right=0,
    )
    found: Tensor = out.transpose(1, 2)
    return found
