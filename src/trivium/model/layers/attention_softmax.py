"""Causal self-attention on this rank's heads.

Legend: S positions, B sequences, H hidden, N heads here, G key-value heads here, D head width.
"""

import torch

from trivium.kernels.recompute import recomputed
from trivium.model.inputs import Inputs
from trivium.model.layers.half import Around, Half
from trivium.model.layers.linear import ColumnLinear, RowLinear
from trivium.model.layers.norms import HeadNorm
from trivium.model.layers.positions import Rotation
from trivium.plan.layers.attention_softmax import AttentionSoftmax as Described


class AttentionSoftmax(Half):
    """Queries, keys, values (columns split) -> attention for each head -> out (rows split)."""

    def __init__(self, part: Described, around: Around) -> None:
        super().__init__(around)
        region, ranks = around.region, around.region.group.size
        self.context, self.rms_norm = around.context, around.operations.rms_norm
        self.recompute_core = around.recomputes_attention
        self.N, self.G, self.D = part.heads // ranks, part.kv_heads // ranks, part.head_width
        self.window, self.epsilon = part.window, part.epsilon
        self.rotation = None if part.rotary is None else Rotation(part.rotary)
        self.qkv = ColumnLinear((self.N + 2 * self.G) * self.D, part.hidden, region, bias=part.qkv_bias)
        # Over each head the norm has one weight for all of them; over all heads, one for every column here.
        self.over_heads = part.qk_norm == "all_heads"
        heads = (self.N, self.G) if self.over_heads else (1, 1)
        norms = [HeadNorm(n * self.D) if part.qk_norm != "none" else None for n in heads]
        self.query_norm, self.key_norm = norms
        self.out = RowLinear(part.hidden, self.N * self.D, region, bias=part.out_bias)

    @property
    def last(self) -> RowLinear:
        """The output projection. Its input columns are divided by heads."""
        return self.out

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H]."""
        S, B = inputs.shape
        x = self.qkv(x, inputs)
        again = self.recompute_core and self.training
        core = recomputed(self._core, x, inputs) if again else self._core(x, inputs)
        return self.out(core.reshape(S, B, -1), inputs)

    def _core(self, qkv: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S, B, columns here] -> [S, B, N, D]."""
        S, B, D = qkv.shape[0], qkv.shape[1], self.D
        queries, seen = self.N // self.G, inputs.seen.within(self.window)
        # Columns come in groups: the queries of a group, its key, its value.
        groups = qkv.view(S, B, self.G, queries + 2, D).permute(3, 1, 2, 0, 4)  # queries + 2, B G S D
        if queries == 1 and self.rotation is None and self.query_norm is None and inputs.memory is None:
            return self.context.attend_joined(groups, seen).permute(2, 0, 1, 3)
        # Split once instead of slicing three times: the backward then joins the gradients in one copy.
        if queries == 1:
            q, k, v = groups.unbind(0)
        else:
            several, k, v = groups.split((queries, 1, 1))
            # With positions first in memory the result has them first too, and is used without a copy.
            q = several.permute(3, 1, 2, 0, 4).reshape(S, B, self.N, D).permute(1, 2, 0, 3)
            k, v = k.squeeze(0), v.squeeze(0)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self._normed(q, k, self.query_norm.weight, self.key_norm.weight)
        if self.rotation is not None:
            q, k = self.rotation(q, k, inputs.numbers.T)
        memory = inputs.memory
        y = (
            self.context.attend(q, k, v, seen)
            if memory is None
            else memory.attend(self.layer, q, k, v, self.context.attention, window=self.window)
        )
        return y.permute(2, 0, 1, 3)  # S B N D

    def _normed(
        self, q: torch.Tensor, k: torch.Tensor, of_q: torch.Tensor, of_k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries [B, N, S, D] and keys [B, G, S, D] after their RMSNorm."""
        if self.over_heads:
            return self.region.norm_over_heads(q, k, of_q, of_k, self.epsilon)
        return self.rms_norm(q, of_q, self.epsilon), self.rms_norm(k, of_k, self.epsilon)
