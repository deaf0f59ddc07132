"""Causal self-attention on this rank's heads.

Legend: S positions, B sequences, H hidden, N heads here, G key-value heads here, D head width.
"""

import torch

from trivium.kernels.recompute import recomputed
from trivium.model.inputs import Inputs
from trivium.model.layers.half import Half
from trivium.model.layers.linear import ColumnLinear, RowLinear
from trivium.model.layers.norm import HeadNorm, norm_heads
from trivium.model.layers.rotary import Turning, rotate
from trivium.parallel.context.attention import Context
from trivium.parallel.tensor.regions import Region
from trivium.plan.model_shape import ModelShape


class Attention(Half):
    """norm -> queries, keys, values (columns split) -> attention per head -> out (rows split); or the norm at the end.

    Queries and keys may have a norm over each head or all of them, and are turned by their positions (llama); those
    of a layer may see a window only, which the number of the layer in the model decides."""

    def __init__(
        self, model: ModelShape, layer: int, region: Region, context: Context, *, recompute_core: bool
    ) -> None:
        super().__init__("attention", model, layer, region)
        self.context, self.recompute_core = context, recompute_core
        self.N, self.G = model.heads // region.group.size, model.kv // region.group.size
        self.window = model.window_of(layer)
        self.turning = Turning(model.head_columns, model.rope_base, model.rope_scaling)
        bias, D = model.family == "gpt", model.head_columns
        self.qkv = ColumnLinear((self.N + 2 * self.G) * D, model.hidden, region, bias=bias or model.qkv_bias)
        normed = model.qk_norm != "none"
        self.query_norm = HeadNorm(model, self.N) if normed else None
        self.key_norm = HeadNorm(model, self.G) if normed else None
        self.out = RowLinear(model.hidden, self.N * D, region, bias=bias)

    @property
    def last(self) -> RowLinear:
        """Its rows are split, by heads."""
        return self.out

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H]."""
        S, B = inputs.shape
        x = self.qkv(x)
        again = self.recompute_core and self.training
        core = recomputed(self._core, x, inputs) if again else self._core(x, inputs)
        return self.out(core.reshape(S, B, -1))

    def _core(self, qkv: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S, B, columns here] -> [S, B, N, D]."""
        S, B, D = qkv.shape[0], qkv.shape[1], self.model.head_columns
        queries, seen = self.N // self.G, inputs.seen.within(self.window)
        # Columns come in groups: the queries of a group, its key, its value.
        groups = qkv.view(S, B, self.G, queries + 2, D).permute(3, 1, 2, 0, 4)  # queries + 2, B G S D
        if queries == 1 and self.model.family == "gpt" and inputs.memory is None:
            return self.context.attend_joined(groups, seen).permute(2, 0, 1, 3)
        # Taken apart at once, not sliced: the backward joins the gradients in one copy.
        if queries == 1:
            q, k, v = groups.unbind(0)
        else:
            several, k, v = groups.split((queries, 1, 1))
            # Positions first in memory, as the result then is too, which goes on without a copy.
            q = several.permute(3, 1, 2, 0, 4).reshape(S, B, self.N, D).permute(1, 2, 0, 3)
            k, v = k.squeeze(0), v.squeeze(0)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = norm_heads(self.model, q, k, (self.query_norm, self.key_norm), self.region)
        if self.model.family == "llama":
            q, k = rotate(q, k, inputs.numbers.T, self.turning)
        memory = inputs.memory
        y = (
            self.context.attend(q, k, v, seen)
            if memory is None
            else memory.attend(self.layer, q, k, v, window=self.window)
        )
        return y.permute(2, 0, 1, 3)  # S B N D
