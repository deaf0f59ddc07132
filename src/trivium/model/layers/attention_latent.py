"""Causal self-attention whose queries, keys and values are made of latents, on this rank's heads.

Legend: S positions, B sequences, H hidden, N heads here, L columns of the latent of keys and values, R rotated columns,
P plain columns, D = P + R columns of a head of queries and keys, V columns of a head of values, K positions cached.
"""

import math
from dataclasses import replace

import torch

from trivium.kernels.recompute import recomputed
from trivium.kernels.scaled_attention import ScaledAttention
from trivium.model.inputs import Inputs
from trivium.model.kv_cache import KVCache
from trivium.model.layers.half import Around, Half
from trivium.model.layers.linear import ColumnLinear, OuterLinear, RowLinear
from trivium.model.layers.norms import RmsNorm
from trivium.model.layers.positions import Rotation
from trivium.plan.layers.attention_latent import AttentionLatent as Described
from trivium.plan.layers.norms import RmsNorm as DescribedNorm

Tensor = torch.Tensor


class AttentionLatent(Half):
    """Latents and their norms (on every tensor rank) -> queries, keys, values (columns split) -> attention for each
    head -> out (rows split).

    Generation caches the latent of keys and values with the rotated key that heads share.
    """

    def __init__(self, part: Described, around: Around) -> None:
        super().__init__(around)
        region, latent = around.region, part.latent
        self.recompute_core = around.recomputes_attention
        self.N, self.window = part.heads // region.group.size, part.window
        self.L, self.P, self.R = latent.kv_rank, latent.plain_columns, latent.rotated_columns
        self.D, self.V = latent.head_columns, latent.value_columns
        self.scale = 1 / math.sqrt(self.D) if part.scale is None else part.scale
        attention = around.context.attention
        if part.scale is not None:
            attention = ScaledAttention(attention, part.scale * math.sqrt(self.D))
        self.context = replace(around.context, attention=attention)
        self.rotation = Rotation(part.rotary)
        if latent.query_rank is None:
            self.query = ColumnLinear(self.N * self.D, part.hidden, region, bias=False)
        else:
            self.query_down = OuterLinear(latent.query_rank, part.hidden, region, bias=False)
            self.query_norm = self._norm(part, latent.query_rank, around)
            self.query_up = ColumnLinear(self.N * self.D, latent.query_rank, region, bias=False)
        self.kv_down = OuterLinear(self.L + self.R, part.hidden, region, bias=False)
        self.kv_norm = self._norm(part, self.L, around)
        self.kv_up = ColumnLinear(self.N * (self.P + self.V), self.L, region, bias=False)
        self.out = RowLinear(part.hidden, self.N * self.V, region, bias=False)

    @staticmethod
    def _norm(part: Described, columns: int, around: Around) -> RmsNorm:
        return RmsNorm(DescribedNorm(columns, part.latent.norm_epsilon), around.operations)

    @property
    def last(self) -> RowLinear:
        """The output projection. Its input columns are divided by heads."""
        return self.out

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        """[S here, B, H] -> [S here, B, H]."""
        q = self._queries(x, inputs)
        latent, shared = self.kv_down(x, inputs).split((self.L, self.R), dim=-1)
        latent, shared = self.kv_norm(latent), self.region.enter(shared)
        memory = inputs.memory
        if memory is not None:
            held = self._held(latent, shared, inputs, memory)
            if memory.mask is not None:
                return self.out(self._cached(q, held, inputs, memory), inputs)
        kv = self.kv_up(latent, inputs)
        again = self.recompute_core and self.training
        core = recomputed(self._core, q, kv, shared, inputs) if again else self._core(q, kv, shared, inputs)
        return self.out(core.reshape(*inputs.shape, -1), inputs)

    def _queries(self, x: Tensor, inputs: Inputs) -> Tensor:
        """[S here, B, H] -> [S, B, N D]."""
        if hasattr(self, "query"):
            found: Tensor = self.query(x, inputs)
            return found
        return self.query_up(self.query_norm(self.query_down(x, inputs)), inputs)

    def _core(self, q: Tensor, kv: Tensor, shared: Tensor, inputs: Inputs) -> Tensor:
        """q [S, B, N D], kv [S, B, N (P + V)], shared [S, B, R] -> [S, B, N, V]."""
        queries, rotated = self.rotation(self._heads(q, self.N), self._heads(shared, 1), inputs.numbers.T)
        keys, values = self._keys_and_values(kv, rotated)
        return self.context.attend(queries, keys, values, inputs.seen.within(self.window)).permute(2, 0, 1, 3)

    def _keys_and_values(self, kv: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
        """kv [S, B, N (P + V)] and the rotated key of all heads [B, 1, S, R] -> [B, N, S, D] and [B, N, S, V]."""
        plain, values = self._heads(kv, self.N).split((self.P, self.V), dim=-1)
        keys = torch.cat([plain, rotated.expand(-1, self.N, -1, -1)], dim=-1)
        # A copy, because a view would keep the plain columns of the keys for the backward a second time.
        return keys, values.contiguous()

    @staticmethod
    def _heads(x: Tensor, heads: int) -> Tensor:
        """[S, B, heads D] -> [B, heads, S, D]."""
        return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)

    def _held(self, latent: Tensor, shared: Tensor, inputs: Inputs, memory: KVCache) -> Tensor:
        """Cache latents [S, B, L] and the rotated key [S, B, R]; return those of all tokens read, [B, K, L + R]."""
        rotated = self.rotation.alone(self._heads(shared, 1), inputs.numbers.T)
        (held,) = memory.write(self.layer, torch.cat([self._heads(latent, 1), rotated], dim=-1))
        return held.squeeze(1)

    def _cached(self, q: Tensor, held: Tensor, inputs: Inputs, memory: KVCache) -> Tensor:
        """Attend from q [S, B, N D] to what is cached, [B, K, L + R] -> [S, B, N V].

        Keys and values are computed from the latents again if there are enough queries for this to be cheaper, or if
        there is an adapter. Elsewhere their weights are applied to queries and results instead.
        """
        queries = self.rotation.alone(self._heads(q, self.N), inputs.numbers.T)
        mask = memory.mask_through(self.window)
        S, of_values = q.shape[0], self.P + self.V
        if self.kv_up.adapter is not None or S * (2 * self.L - of_values) > self.L * of_values:
            latent, rotated = held.split((self.L, self.R), dim=-1)
            keys, values = self._keys_and_values(self.kv_up(latent.transpose(0, 1), inputs), rotated.unsqueeze(1))
            y = self.context.attention.attend_masked(queries, keys, values, mask)
        else:
            y = self._absorbed(queries, held, mask)
        return y.permute(2, 0, 1, 3).flatten(2)

    def _absorbed(self, q: Tensor, held: Tensor, mask: Tensor) -> Tensor:
        """Attend to latents as keys and values of one head: q [B, N, S, D], held [B, K, L + R] -> [B, N, S, V]."""
        to_keys, to_values = self.kv_up.weight.view(self.N, self.P + self.V, self.L).split((self.P, self.V), dim=1)
        plain, rotated = q.split((self.P, self.R), dim=-1)
        wide = torch.cat([plain @ to_keys, rotated], dim=-1)  # B N S L + R
        scores = (wide.flatten(1, 2) @ held.mT).unflatten(1, q.shape[1:3]) * self.scale + mask
        y = scores.softmax(-1).flatten(1, 2) @ held[..., : self.L]  # B N S, L
        return y.unflatten(1, q.shape[1:3]) @ to_values.mT
