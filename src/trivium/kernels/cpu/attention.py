"""Causal attention on a processor: by blocks of queries, by batched products in bf16, or by torch's fused kernel.

Legend: B sequences, N heads, G key-value heads, S queries, K keys, D head width.
"""

import math

import torch
import torch.nn.functional as F

from trivium.kernels.attention import About, Attention, Known
from trivium.kernels.cpu import block_attention, fused_attention, narrow_attention
from trivium.kernels.sight import Sight

Tensor = torch.Tensor


class CpuAttention(Attention):
    """Attention on a processor, whose fused kernel takes every dtype, masks and groups of heads."""

    def attend_joined(self, qkv: Tensor, sight: Sight) -> Tensor:
        """See Attention. Queries, keys and values stay joined where that is faster."""
        if sight.starts is None and sight.window is None:
            if narrow_attention.suits(qkv):
                return narrow_attention.attend(qkv)
            if block_attention.suits(qkv[0], joined=True):
                return block_attention.attend_joined(qkv)
        return super().attend_joined(qkv, sight)

    def attend_before(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if block_attention.suits(q) or v.shape[-1] != q.shape[-1]:
            return block_attention.attend(q, k, v)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    def attend_within(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """Compute the reference by blocks of queries, which skip keys that none of their queries attends to."""
        return block_attention.attend(q, k, v, sight)

    def attend_masked(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        if v.shape[-1] != q.shape[-1]:  # for which torch would store all scores
            return fused_attention.attend(q, k, v, hiding=mask)[0]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])

    def fuses(self, q: Tensor) -> bool:
        """True: there is a kernel for all queries."""
        return True

    def tile(
        self, q: Tensor, k: Tensor, v: Tensor, *, triangle: bool = False, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, About]:
        """Compute the reference, in fp32 if the CPU upcasts the queries."""
        out, sums = fused_attention.attend(q, k, v, causal=triangle, hiding=_hiding(mask, q))
        # Of a query that sees no key the kernel says 0, as if it saw one.
        return out, sums if mask is None else sums.masked_fill(~mask.any(-1), -math.inf), ()

    def tile_gradients(
        self, grad: Tensor, qkv: tuple[Tensor, Tensor, Tensor], known: Known, *, triangle: bool, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the reference, in fp32 if the CPU upcasts the queries."""
        given = grad.contiguous(), *qkv, known.out, known.sums.contiguous()
        return fused_attention.gradients(*given, causal=triangle, hiding=_hiding(mask, qkv[0]))


def _hiding(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Return the mask as numbers that are added to scores: 0 or minus infinity."""
    return None if mask is None else q.new_zeros(mask.shape).masked_fill_(~mask, -math.inf)
