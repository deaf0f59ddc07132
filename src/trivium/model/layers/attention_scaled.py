"""Softmax attention whose scores have a scale of their own, and may be soft-capped.

Legend: S positions, B sequences, N heads here, G key-value heads here, D head width.
"""

import math
from dataclasses import replace

import torch

from trivium.kernels.attention import Attention
from trivium.kernels.scaled_attention import CappedAttention, ScaledAttention
from trivium.model.layers.attention_softmax import AttentionSoftmax
from trivium.model.layers.half import Around
from trivium.model.layers.norms_offset import one_and
from trivium.plan.layers.attention_scaled import AttentionScaled as Described


class AttentionScaled(AttentionSoftmax):
    """AttentionSoftmax with a scale and a cap: softmax(cap · tanh(scale · q k / cap)) v."""

    def __init__(self, part: Described, around: Around) -> None:
        attention: Attention = around.context.attention if part.cap is None else CappedAttention(part.cap)
        if part.scale is not None:
            attention = ScaledAttention(attention, part.scale * math.sqrt(part.head_width))
        super().__init__(part, around._replace(context=replace(around.context, attention=attention)))
        self.offset_norms = part.offset_norms

    def _normed(
        self, q: torch.Tensor, k: torch.Tensor, of_q: torch.Tensor, of_k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries [B, N, S, D] and keys [B, G, S, D] after their RMSNorm."""
        if not self.offset_norms:
            return super()._normed(q, k, of_q, of_k)
        normed_q, normed_k = super()._normed(q, k, one_and(of_q), one_and(of_k))
        return normed_q.to(q.dtype), normed_k.to(k.dtype)
