"""Context parallelism: one long sequence over several ranks, each with some of its positions.

Ulysses (arXiv 2309.14509): all-to-all, so that each rank sees all positions of some heads. Ring: ring_attention.py.

Legend: B sequences, N heads, G key-value heads, S positions here, D head width, V of values.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from trivium.comms.collectives import all_to_all
from trivium.comms.group import Group
from trivium.kernels.attention import Attention
from trivium.kernels.sight import Sight
from trivium.parallel.context.ring import ring_attention

Tensor = torch.Tensor


@dataclass(frozen=True)
class Context:
    """The ranks that share a sequence, how they exchange positions or heads, and how each attends."""

    group: Group
    mode: Literal["ulysses", "ring"]
    attention: Attention

    def attend_joined(self, qkv: Tensor, sight: Sight) -> Tensor:
        """Queries, keys and values of as many heads, [3, B, N, S, D] of this rank's positions -> [B, N, S, D]."""
        if self.group.size == 1:
            return self.attention.attend_joined(qkv, sight)
        # Split once instead of slicing three times: the backward then concatenates the gradients in one copy.
        q, k, v = qkv.unbind(0)
        return self.attend(q, k, v, sight)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """q [B, N, S, D], k [B, G, S, D] and v [B, G, S, V] of this rank's positions -> [B, N, S, V]."""
        if self.group.size == 1:
            return self.attention.attend(q, k, v, sight)
        if self.mode == "ring":
            return ring_attention(q, k, v, sight, self.group, self.attention)
        q, k, v = (_Exchange.apply(x, self.group, "heads") for x in (q, k, v))
        return _Exchange.apply(self.attention.attend(q, k, v, sight), self.group, "positions")


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
