"""Causal attention through a window: each query sees itself and so many before it.

On a processor by blocks of queries (block_attention.py); on an accelerator by the fused kernel that knows windows, and
where there is none for the numbers, behind a mask.

Legend: B sequences, N heads, G key-value heads, S positions, D head width.
"""

import torch
import torch.nn.functional as F

from trivium.parallel import block_attention, fused_tile

Tensor = torch.Tensor


def suits(q: Tensor) -> bool:
    """Whether they are on a processor."""
    return q.device.type == "cpu"


def attend(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """q [B, N, S, D], k and v [B, G, S, D] -> [B, N, S, D]: each query sees its own position and window - 1 before.

    What it keeps for the backward is what attention to all positions keeps."""
    if suits(q):
        return block_attention.attend(q, k, v, window=window)
    if fused_tile.suits(q) and not torch.compiler.is_compiling():
        return _by_accelerator(q, k, v, window)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=_seen(q.shape[2], window, q.device))


def _seen(S: int, window: int, device: torch.device) -> Tensor:
    """[S, S], true where a query sees a key."""
    return torch.ones(S, S, dtype=torch.bool, device=device).tril().triu(1 - window)


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
