"""Context parallelism: one long sequence over several ranks, each with some of its positions.

Ulysses (arXiv 2309.14509): all-to-all, so that each rank sees all positions of some heads. Ring: ring_attention.py.

Legend: B sequences, N heads, G key-value heads, S positions here, D head width.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

from trivium.comms.collectives import all_to_all
from trivium.comms.mesh import Group
from trivium.kernels import fused_tile, reach_attention
from trivium.kernels.cpu import block_attention, narrow_attention
from trivium.kernels.sight import Sight
from trivium.parallel.context.ring import ring_attention

Tensor = torch.Tensor


@dataclass(frozen=True)
class Context:
    """The ranks that share a sequence, and how they attend."""

    group: Group
    mode: Literal["ulysses", "ring"]

    def attend_joined(self, qkv: Tensor, sight: Sight) -> Tensor:
        """Queries, keys and values of as many heads, [3, B, N, S, D] of this rank's positions -> [B, N, S, D]."""
        if self.group.size == 1 and sight.starts is None and sight.window is None:
            if narrow_attention.suits(qkv):
                return narrow_attention.attend(qkv)
            if block_attention.suits(qkv[0], joined=True):
                return block_attention.attend_joined(qkv)
        # Taken apart at once, not sliced: the backward joins the gradients in one copy.
        q, k, v = qkv.unbind(0)
        return self.attend(q, k, v, sight)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """q [B, N, S, D], k and v [B, G, S, D] of this rank's positions -> [B, N, S, D]."""
        if self.group.size == 1:
            return _attend_here(q, k, v, sight)
        if self.mode == "ring":
            return ring_attention(q, k, v, sight, self.group)
        q, k, v = (_Exchange.apply(x, self.group, "heads") for x in (q, k, v))
        return _Exchange.apply(_attend_here(q, k, v, sight), self.group, "positions")


def _attend_here(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
    """All positions are here, in order."""
    near = sight.window is not None and sight.window < q.shape[2]
    if near or sight.starts is not None:
        return reach_attention.attend(q, k, v, sight)
    if block_attention.suits(q):
        return block_attention.attend(q, k, v)
    grouped = q.shape[1] != k.shape[1]
    if grouped and not _knows_groups(q):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        grouped = False
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def _knows_groups(q: Tensor) -> bool:
    """Whether there is a kernel that gives a key to several queries' heads: on accelerators the one that takes no wide
    numbers. Without one torch writes all scores down."""
    return q.device.type == "cpu" or fused_tile.suits(q)


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
