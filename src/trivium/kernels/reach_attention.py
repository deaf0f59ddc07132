"""Causal attention in which a query's reach ends before the sequence does: at a window, or at its document's start.

On a processor by blocks of queries (block_attention.py); on an accelerator by the fused kernel that knows windows and
documents, and where there is none for the numbers, behind a mask. Neither blocks nor that kernel touch keys that no
query near them sees.

Legend: B sequences, N heads, G key-value heads, S positions, D head width.
"""

import torch
import torch.nn.functional as F

from trivium.kernels import fused_tile
from trivium.kernels.cpu import block_attention
from trivium.kernels.sight import Sight

Tensor = torch.Tensor


def suits(q: Tensor) -> bool:
    """Whether they are on a processor."""
    return q.device.type == "cpu"


def attend(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
    """q [B, N, S, D], k and v [B, G, S, D] of all positions, in order -> [B, N, S, D].

    By blocks or that kernel it keeps for the backward what attention to all positions keeps."""
    if suits(q):
        return block_attention.attend(q, k, v, sight)
    if fused_tile.suits(q):
        return _by_accelerator(q, k, v, sight)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    every = torch.arange(q.shape[2], device=q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=sight.mask(every, every))


def _by_accelerator(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
    """By the kernel under PyTorch's own fused attention, which alone takes a window and where documents begin. It has
    positions before heads, and sequences with documents end to end."""
    B, _, S, _ = q.shape
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    edges, longest = None, S
    if sight.starts is not None:
        edges, longest = sight.documents(q.device)
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    # Counted without the query itself, and none to its right.
    reach = {} if sight.window is None else {"window_size_left": sight.window - 1, "window_size_right": 0}
    no_dropout, no_mask_back = 0.0, False
    out, *_ = torch.ops.aten._flash_attention_forward(
        *(q, k, v, edges, edges, longest, longest, no_dropout, not reach, no_mask_back), **reach
    )
    found: Tensor = out.view(B, S, *out.shape[-2:]).transpose(1, 2)
    return found
