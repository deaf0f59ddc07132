"""Ring attention (arXiv 2310.01889): keys and values travel round the ranks while each attends from its own positions.

The next ones are under way while these are attended to, and their gradients follow one turn behind. Tiles are
PyTorch's fused kernels', whose sums over keys are joined here. Where a kernel takes no mask, and only some of a tile
is seen, scores are written down.

Legend: B sequences, N heads, G key-value heads, S positions here, K positions of the keys at hand, D head width,
V head width of values.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from trivium.comms.collectives import rotate_begin
from trivium.comms.group import Group
from trivium.kernels.attention import About, Attention, Known, per_head
from trivium.kernels.sight import Seen, Sight, Tile

Tensor = torch.Tensor
BLOCK_QUERIES = 512  # queries whose scores or mask are in memory at once
GRADIENTS = 2  # tag of their messages; keys and values have the two before
Arriving = Callable[[], tuple[Tensor, ...]]  # waits for what neighbours send


def ring_attention(q: Tensor, k: Tensor, v: Tensor, sight: Sight, group: Group, attention: Attention) -> Tensor:
    """q [B, N, S, D], k [B, G, S, D] and v [B, G, S, V] of this rank's positions -> [B, N, S, V]."""
    found: Tensor = _Ring.apply(q, k, v, sight, group, attention)
    return found


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sight: Sight, group: Group, attention: Attention) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=wide, device=q.device)
        log_sum = torch.full(q.shape[:-1], -math.inf, dtype=wide, device=q.device)
        about: About = ()
        for owner, keys, values in _passing(k, v, group):
            for tile in _tiles(sight, group.index, owner, has_kernel=attention.fuses(q)):
                here, mine = tile.here, q[:, :, tile.here]
                k_there, v_there = (per_head(x[:, :, tile.there], q) for x in (keys, values))
                mask = _mask(tile, sight, group.index, owner, q)
                triangle = tile.seen is Seen.TRIANGLE
                part, sums, about = attention.tile(mine, k_there, v_there, triangle=triangle, mask=mask)
                before = log_sum[:, :, here].clone()
                log_sum[:, :, here] = now = torch.logaddexp(before, sums)
                # A query that has seen nothing yet has no sum to compare with.
                level = now.masked_fill(now == -math.inf, 0)
                faded, joins = ((x - level).exp().unsqueeze(-1) for x in (before, sums))
                out[:, :, here] = out[:, :, here] * faded + part * joins
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.sight, ctx.group, ctx.attention, ctx.about = sight, group, attention, about
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        q, k, v, out, log_sum = ctx.saved_tensors
        sight, group, attention, wide = ctx.sight, ctx.group, ctx.attention, out.dtype
        grad, narrow, d_q = grads[0], out.to(q.dtype), torch.zeros(q.shape, dtype=wide, device=q.device)
        arriving: Arriving | None = None
        for owner, keys, values in _passing(k, v, group):
            d_k, d_v = (torch.zeros(x.shape, dtype=wide, device=x.device) for x in (k, v))
            for tile in _tiles(sight, group.index, owner, has_kernel=attention.fuses(q)):
                here, there = tile.here, tile.there
                k_there, v_there = (per_head(x[:, :, there], q) for x in (keys, values))
                mask = _mask(tile, sight, group.index, owner, q)
                known = Known(narrow[:, :, here], out[:, :, here], log_sum[:, :, here], ctx.about)
                given = grad[:, :, here], (q[:, :, here], k_there, v_there), known
                found = attention.tile_gradients(*given, triangle=tile.seen is Seen.TRIANGLE, mask=mask)
                for whole, where, part in zip((d_q, d_k, d_v), (here, there, there), found, strict=True):
                    whole[:, :, where] += _per_group(part.to(wide), whole.shape[1])
            if arriving is not None:
                for own, so_far in zip((d_k, d_v), arriving(), strict=True):
                    own += so_far
            arriving = rotate_begin((d_k, d_v), group, GRADIENTS)
        assert arriving is not None, "a ring has a rank"
        d_k, d_v = arriving()  # home, after the whole round
        return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), None, None, None


def _passing(k: Tensor, v: Tensor, group: Group) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Keys and values of every rank in turn, and whose they are; the next are under way meanwhile."""
    for turn in range(group.size):
        coming = rotate_begin((k, v), group) if turn + 1 < group.size else None
        yield (group.index - turn) % group.size, k, v
        if coming is not None:
            k, v = coming()


def _tiles(sight: Sight, here: int, there: int, *, has_kernel: bool) -> Iterator[Tile]:
    """Yield tiles that are seen whole or as a triangle; others some queries at a time, to be attended to with a mask.
    Without a fused kernel every tile has a mask."""
    for tile in sight.tiles(here, there):
        if tile.seen is not Seen.SOME and has_kernel:
            yield tile
            continue
        for start in range(tile.here.start, tile.here.stop, BLOCK_QUERIES):
            some = Tile(slice(start, min(start + BLOCK_QUERIES, tile.here.stop)), tile.there, Seen.SOME)
            near = sight.in_reach(some, here, there)
            if near is not None:
                yield near if has_kernel else near._replace(seen=Seen.SOME)


def _mask(tile: Tile, sight: Sight, here: int, there: int, q: Tensor) -> Tensor | None:
    if tile.seen is not Seen.SOME:
        return None
    queries, keys = (sight.placed(rank, q.device) for rank in (here, there))
    return sight.mask(queries[tile.here], keys[tile.there])


def _per_group(x: Tensor, groups: int) -> Tensor:
    """[B, N, K, D] -> [B, G, K, D]: the sum over each group's queries."""
    return x if x.shape[1] == groups else x.unflatten(1, (groups, -1)).sum(2)
