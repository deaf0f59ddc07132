"""Context parallelism: one long sequence over several ranks, each with some of its positions.

Ulysses (arXiv 2309.14509): all-to-all, so that each rank sees all positions of some heads. Ring (arXiv 2310.01889):
keys and values travel round the ranks while each attends from its own positions.

Legend: B sequences, N heads, G key-value heads, S positions here, K positions of the keys at hand, D head width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

from trivium.parallel import narrow_attention, wide_attention
from trivium.parallel.collectives import all_to_all, rotate
from trivium.parallel.mesh import Group

Tensor = torch.Tensor


@dataclass(frozen=True)
class Sight:
    """Which positions see which.

    order: the positions [S] that each rank of the group holds. documents: [whole sequence, B], the number of the
    document of every position, or None when packed documents see each other.
    """

    order: tuple[Tensor, ...]
    documents: Tensor | None

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """[B or 1, 1, queries, keys], true where a query sees a key; None when every query sees every key."""
        if self.documents is None and bool(queries.min() >= keys.max()):
            return None
        seen = (queries[:, None] >= keys[None, :])[None, None]
        if self.documents is not None:
            of_query, of_key = self.documents[queries].T, self.documents[keys].T  # B S, B K
            seen = seen & (of_query[:, None, :, None] == of_key[:, None, None, :])
        return seen


@dataclass(frozen=True)
class Context:
    """The ranks that share a sequence, and how they attend."""

    group: Group
    mode: Literal["ulysses", "ring"]

    def attend_joined(self, qkv: Tensor, sight: Sight) -> Tensor:
        """Queries, keys and values of as many heads, [3, B, N, S, D] of this rank's positions -> [B, N, S, D]."""
        if self.group.size == 1 and sight.documents is None:
            for ours in (narrow_attention, wide_attention):
                if ours.suits(qkv):
                    return ours.attend(qkv)
        # Taken apart at once, not sliced: the backward joins the gradients in one copy.
        q, k, v = qkv.unbind(0)
        return self.attend(q, k, v, sight)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """q [B, N, S, D], k and v [B, G, S, D] of this rank's positions -> [B, N, S, D]."""
        if self.group.size == 1:
            return _attend_here(q, k, v, sight)
        if self.mode == "ring":
            return _Ring.apply(q, k, v, sight, self.group)
        q, k, v = (_Exchange.apply(x, self.group, "heads") for x in (q, k, v))
        return _Exchange.apply(_attend_here(q, k, v, sight), self.group, "positions")


def _attend_here(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
    """All positions are here, in order."""
    grouped = q.shape[1] != k.shape[1]
    if sight.documents is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    every = torch.arange(q.shape[2], device=q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=sight.mask(every, every), enable_gqa=grouped)


class _Exchange(torch.autograd.Function):
    """Split heads and join positions over the group ("heads"), or the reverse; backward reverses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, split: Literal["heads", "positions"]) -> Tensor:
        ctx.group, ctx.split = group, split
        return _exchange(x, group, split)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        back: Literal["heads", "positions"] = "positions" if ctx.split == "heads" else "heads"
        return _exchange(grads[0], ctx.group, back), None, None


def _exchange(x: Tensor, group: Group, split: Literal["heads", "positions"]) -> Tensor:
    dims = (1, 2) if split == "heads" else (2, 1)
    parts = all_to_all(torch.stack(x.chunk(group.size, dims[0])), group)
    return torch.cat(tuple(parts), dims[1])


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sight: Sight, group: Group) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        rows = q.shape[:-1]
        out = torch.zeros(q.shape, dtype=wide, device=q.device)
        log_sum = torch.full(rows, -math.inf, dtype=wide, device=q.device)

        def look(owner: int, travelling: tuple[Tensor, ...]) -> None:
            for here, there, mask in _visible(sight, group.index, owner):
                scores = _scores(q[:, :, here].to(wide), travelling[0][:, :, there].to(wide), mask)
                new = torch.logaddexp(log_sum[:, :, here], scores.logsumexp(-1))
                # A query that has seen nothing yet has no largest score to subtract.
                level = new.masked_fill(new == -math.inf, 0)
                weights = (scores - level.unsqueeze(-1)).exp()
                faded = (log_sum[:, :, here] - level).exp().unsqueeze(-1)
                out[:, :, here] = out[:, :, here] * faded + weights @ _per_head(
                    travelling[1][:, :, there].to(wide), q
                )
                log_sum[:, :, here] = new

        _go_round(group, (k, v), look)
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.sight, ctx.group = sight, group
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, log_sum = ctx.saved_tensors
        wide, G = out.dtype, k.shape[1]
        grad = grads[0].to(wide)
        delta = (grad * out).sum(-1, keepdim=True)
        d_q = torch.zeros_like(out)
        scale = 1 / math.sqrt(q.shape[-1])

        def look(owner: int, travelling: tuple[Tensor, ...]) -> None:
            keys, values, d_k, d_v = travelling
            for here, there, mask in _visible(ctx.sight, ctx.group.index, owner):
                theirs, ours = _per_head(keys[:, :, there].to(wide), q), q[:, :, here].to(wide)
                scores = _scores(ours, keys[:, :, there].to(wide), mask)
                weights = (scores - log_sum[:, :, here].unsqueeze(-1)).exp()
                d_weights = grad[:, :, here] @ _per_head(values[:, :, there].to(wide), q).transpose(-1, -2)
                d_scores = weights * (d_weights - delta[:, :, here]) * scale
                d_q[:, :, here] += d_scores @ theirs
                d_k[:, :, there] += _per_group(d_scores.transpose(-1, -2) @ ours, G)
                d_v[:, :, there] += _per_group(weights.transpose(-1, -2) @ grad[:, :, here], G)

        # The gradients of keys and values travel with them, and are home after the whole round.
        zeros = torch.zeros(k.shape, dtype=wide, device=k.device)
        _, _, d_k, d_v = _go_round(ctx.group, (k, v, zeros, zeros.clone()), look, home=True)
        return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), None, None


Look = Callable[[int, tuple[Tensor, ...]], None]


def _go_round(
    group: Group, tensors: tuple[Tensor, ...], look: Look, *, home: bool = False
) -> tuple[Tensor, ...]:
    """Look at the tensors of every rank in turn; tensors that `look` changes come home in a last turn."""
    for turn in range(group.size):
        owner = (group.index - turn) % group.size
        look(owner, tensors)
        if turn + 1 < group.size or home:
            tensors = rotate(tensors, group)
    return tensors


def _visible(sight: Sight, index: int, owner: int) -> list[tuple[slice, slice, Tensor | None]]:
    """The halves of queries here and of keys at hand of which some pair may see each other, and their masks."""
    found = []
    for here in _halves(sight.order[index]):
        for there in _halves(sight.order[owner]):
            queries, keys = sight.order[index][here], sight.order[owner][there]
            if bool(queries.max() >= keys.min()):
                found.append((here, there, sight.mask(queries, keys)))
    return found


def _halves(order: Tensor) -> tuple[slice, ...]:
    middle = len(order) // 2
    return (slice(0, middle), slice(middle, len(order))) if middle else (slice(0, len(order)),)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    scores = q @ _per_head(k, q).transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores if mask is None else scores.masked_fill(~mask, -math.inf)


def _per_head(x: Tensor, q: Tensor) -> Tensor:
    """[B, G, K, D] -> [B, N, K, D]: each key-value head for its queries."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def _per_group(x: Tensor, groups: int) -> Tensor:
    """[B, N, K, D] -> [B, G, K, D]: the sum over each group's queries."""
    return x.unflatten(1, (groups, -1)).sum(2)
