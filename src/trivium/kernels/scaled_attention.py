"""Attention whose scores have a scale of their own, or are soft-capped (Gemma 2, arXiv 2408.00118).

No fused kernel of torch caps scores: here they are computed some queries at a time, and again in the backward.

Legend: B sequences, N heads, G key-value heads, S queries, K keys, D head width.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch

from trivium.kernels.attention import About, Attention, Known, per_head
from trivium.kernels.sight import Sight

Tensor = torch.Tensor

BLOCK_QUERIES = 512  # queries whose scores are in memory at once


class ScaledAttention(Attention):
    """Another attention of queries times a factor, which multiplies the scores."""

    def __init__(self, inner: Attention, factor: float) -> None:
        self.inner, self.factor = inner, factor

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        return self.inner.attend(q * self.factor, k, v, sight)

    def attend_masked(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return self.inner.attend_masked(q * self.factor, k, v, mask)

    def fuses(self, q: Tensor) -> bool:
        return self.inner.fuses(q)

    def tile(
        self, q: Tensor, k: Tensor, v: Tensor, *, triangle: bool = False, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, About]:
        return self.inner.tile(q * self.factor, k, v, triangle=triangle, mask=mask)

    def tile_gradients(
        self, grad: Tensor, qkv: tuple[Tensor, Tensor, Tensor], known: Known, *, triangle: bool, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv
        scaled = q * self.factor, k, v
        d_q, d_k, d_v = self.inner.tile_gradients(grad, scaled, known, triangle=triangle, mask=mask)
        return d_q * self.factor, d_k, d_v


class CappedAttention(Attention):
    """Attention with scores cap · tanh(scores / cap)."""

    def __init__(self, cap: float) -> None:
        self.cap = cap

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        found: Tensor = _Capped.apply(q, k, v, sight, self.cap)
        return found

    def attend_masked(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = _capped(q, per_head(k, q), self.cap) + mask
        return scores.softmax(-1) @ per_head(v, q)

    def tile(
        self, q: Tensor, k: Tensor, v: Tensor, *, triangle: bool = False, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, About]:
        assert mask is not None, "without a fused kernel a tile needs a mask"
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = _capped(q.to(wide), k.to(wide), self.cap).masked_fill_(~mask, -math.inf)
        sums = scores.logsumexp(-1)
        shares = (scores - sums.masked_fill(sums == -math.inf, 0).unsqueeze(-1)).exp_()
        return shares @ v.to(wide), sums, ()

    def tile_gradients(
        self, grad: Tensor, qkv: tuple[Tensor, Tensor, Tensor], known: Known, *, triangle: bool, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert mask is not None, "without a fused kernel a tile needs a mask"
        out = known.wide
        grad, q, k, v = (x.to(out.dtype) for x in (grad, *qkv))
        capped = _capped(q, k, self.cap)
        slope = 1 - (capped / self.cap).square_()
        sums = known.sums.masked_fill(known.sums == -math.inf, 0).unsqueeze(-1)
        shares = (capped.masked_fill_(~mask, -math.inf) - sums).exp_()
        d_shares = grad @ v.transpose(-1, -2)
        d_capped = shares * (d_shares - (grad * out).sum(-1, keepdim=True))
        d_scores = d_capped * slope / math.sqrt(q.shape[-1])
        return d_scores @ k, d_scores.transpose(-1, -2) @ q, shares.transpose(-1, -2) @ grad


def _capped(q: Tensor, k: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(q @ k.transpose(-1, -2) / (cap * math.sqrt(q.shape[-1])))


class _Capped(torch.autograd.Function):
    """Keeps what other kinds of attention keep: queries, keys, values, the result, and a sum for each query."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sight: Sight, cap: float) -> Tensor:
        (B, N, S, D), attention = q.shape, CappedAttention(cap)
        out = q.new_empty(S, B, N, D).permute(1, 2, 0, 3)  # positions first in memory, as the next product reads it
        sums = q.new_empty(B, N, S, dtype=torch.promote_types(q.dtype, torch.float32))
        keys, values = per_head(k, q), per_head(v, q)
        for here, mask in _some_queries(q, sight):
            out[:, :, here], sums[:, :, here], _ = attention.tile(q[:, :, here], keys, values, mask=mask)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.sight, ctx.attention = sight, attention
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        (q, k, v, out, sums), (grad,) = ctx.saved_tensors, grads
        keys, values, d_q = per_head(k, q), per_head(v, q), torch.empty_like(q)
        d_k, d_v = (torch.zeros(keys.shape, dtype=sums.dtype, device=q.device) for _ in range(2))
        for here, mask in _some_queries(q, ctx.sight):
            mine = out[:, :, here]
            known = Known(mine, mine.to(sums.dtype), sums[:, :, here], ())
            given = grad[:, :, here], (q[:, :, here], keys, values), known
            found = ctx.attention.tile_gradients(*given, triangle=False, mask=mask)
            d_q[:, :, here] = found[0]
            d_k += found[1]
            d_v += found[2]
        d_k, d_v = (x.unflatten(1, (k.shape[1], -1)).sum(2).to(k.dtype) for x in (d_k, d_v))
        return d_q, d_k, d_v, None, None


def _some_queries(q: Tensor, sight: Sight) -> Iterator[tuple[slice, Tensor]]:
    """Yield some queries at a time, with what they see of all keys."""
    every = torch.arange(q.shape[2], device=q.device)
    for start in range(0, len(every), BLOCK_QUERIES):
        here = slice(start, min(start + BLOCK_QUERIES, len(every)))
        yield here, sight.mask(every[here], every)
