"""Causal attention: the reference in plain torch, of which a backend overrides what it computes faster.

Legend: B sequences, N heads, G key-value heads, S queries, K keys, D head width, V head width of values.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from trivium.kernels.sight import Sight

Tensor = torch.Tensor
# What a fused kernel wants back in the backward.
About = tuple[Any, ...]


class Known(NamedTuple):
    """Results of attention for some queries over all their keys: the result [B, N, S, D] in the dtype of the queries
    and in the wide dtype, the logarithms of the sums of exponentials [B, N, S], and what the kernel returned
    besides."""

    out: Tensor
    wide: Tensor
    sums: Tensor
    about: About


class Attention:
    """Attention of queries [B, N, S, D] to keys and values [B, G, K, D]."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """q [B, N, S, D], k and v [B, G, S, D] of all positions, in order -> [B, N, S, D]."""
        near = sight.window is not None and sight.window < q.shape[2]
        if near or sight.starts is not None:
            return self.attend_within(q, k, v, sight)
        return self.attend_before(q, k, v)

    def attend_joined(self, qkv: Tensor, sight: Sight) -> Tensor:
        """Queries, keys and values of as many heads and all positions, [3, B, N, S, D] -> [B, N, S, D]."""
        # Split once instead of slicing three times: the backward then concatenates the gradients in one copy.
        q, k, v = qkv.unbind(0)
        return self.attend(q, k, v, sight)

    def attend_before(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend to each query's own position and all before it."""
        return F.scaled_dot_product_attention(q, per_head(k, q), per_head(v, q), is_causal=True)

    def attend_within(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """Attend within a window, or within packed documents."""
        every = torch.arange(q.shape[2], device=q.device)
        return F.scaled_dot_product_attention(q, per_head(k, q), per_head(v, q), attn_mask=sight.mask(every, every))

    def attend_masked(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attend to cached keys; mask [B or 1, 1, S, K] is added to the scores."""
        return F.scaled_dot_product_attention(q, per_head(k, q), per_head(v, q), attn_mask=mask)

    def fuses(self, q: Tensor) -> bool:
        """Whether a fused kernel takes tiles of such queries without a mask."""
        return False

    def tile(
        self, q: Tensor, k: Tensor, v: Tensor, *, triangle: bool = False, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, About]:
        """Attend to some keys: q [B, N, S, D], k and v [B, N, K, D] -> the result over these keys [B, N, S, D], the
        logarithm of each query's sum of exponentials [B, N, S], and what the kernel wants back.

        triangle: a query sees the keys of its own number and before. mask [B or 1, 1, S, K]: true where it sees a key.
        One of both is given, unless all keys are seen and `fuses`.
        """
        assert mask is not None, "without a fused kernel a tile needs a mask"
        return *attend_by_scores(q.to(torch.promote_types(q.dtype, torch.float32)), k, v, mask), ()

    def tile_gradients(
        self, grad: Tensor, qkv: tuple[Tensor, Tensor, Tensor], known: Known, *, triangle: bool, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of q, k and v of a tile.

        What is known is over all keys, not those of the tile alone: what a kernel takes for the share of a key in the
        tile is then its share in all."""
        assert mask is not None, "without a fused kernel a tile needs a mask"
        return gradients_by_scores(grad, qkv, known, mask)


def as_wide(*given: Tensor) -> tuple[Tensor, ...]:
    """Return tensors padded with zeros to one width, for kernels that take no values of another width than queries'.
    Zeros change neither scores, as long as their scale is given, nor the results that are wanted."""
    widths = {x.shape[-1] for x in given}
    if len(widths) == 1:
        return given
    width = max(widths)
    return tuple(F.pad(x, (0, width - x.shape[-1])) for x in given)


def attend_by_scores(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B, N, S, D] and the logarithm of each query's sum [B, N, S], in the dtype of q."""
    scores = _scores(q, k.to(q.dtype), mask)
    sums = scores.logsumexp(-1)
    weights = (scores - sums.masked_fill(sums == -math.inf, 0).unsqueeze(-1)).exp()
    return weights @ v.to(q.dtype), sums


def gradients_by_scores(
    grad: Tensor, qkv: tuple[Tensor, Tensor, Tensor], known: Known, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, given the result over all keys and its sums."""
    out = known.wide
    grad, q, k, v = (x.to(out.dtype) for x in (grad, *qkv))
    weights = (_scores(q, k, mask) - known.sums.unsqueeze(-1)).exp()
    d_weights = grad @ v.transpose(-1, -2)
    d_scores = weights * (d_weights - (grad * out).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
    return d_scores @ k, d_scores.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ grad


def per_head(x: Tensor, q: Tensor) -> Tensor:
    """[B, G, K, D] -> [B, N, K, D]: each key-value head, repeated for its queries."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def _scores(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill_(~mask, -math.inf)
