"""The rows of experts: one for each expert that a token visits, in the order of the experts.

Legend: T tokens, K experts of a token, N rows of all experts, H hidden.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F

from trivium.kernels.grouped import Groups

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """order [N]: of each row, its number among the choices [T K] of the tokens. places [T, K]: the row of each choice,
    N where an expert has no room for it. groups: the rows of each expert. dropped: choices for which their expert had
    no room."""

    order: Tensor
    places: Tensor
    groups: Groups
    dropped: int = 0

    @classmethod
    def of(cls, chosen: Tensor, experts: int, capacity: float | None = None) -> "Rows":
        """The rows of the chosen experts [T, K] of each token; those of one expert in the order of the tokens.

        capacity: the most rows of an expert, as a multiple of their mean, rounded up. Of more, those of the last
        tokens are dropped.
        """
        ids, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(experts, device=order.device)
        ends = torch.searchsorted(ids, numbers, right=True, out_int32=True)
        places, row_numbers = torch.empty_like(order), torch.arange(len(order), device=order.device)
        if capacity is not None:
            room = math.ceil(len(order) / experts * capacity)
            starts = torch.searchsorted(ids, numbers)
            has_room = row_numbers - starts[ids] < room
            places.fill_(int(has_room.sum()))
            order, ends = order[has_room], (ends - starts).clamp_(max=room).cumsum(0, dtype=torch.int32)
            row_numbers = row_numbers[: len(order)]
        places[order] = row_numbers
        return cls(order, places.view_as(chosen), Groups(ends), places.numel() - len(order))

    def padded(self, multiple: int) -> tuple["Rows", Tensor]:
        """Return rows of which each expert has a multiple, and the number there of each row here [N]. The others repeat
        the last row of their expert; what is made of them is in no sum."""
        counts = self.groups.counts
        more = -counts % multiple
        before = more.cumsum(0) - more
        numbers = torch.arange(len(self.order), device=counts.device)
        moved = numbers + before.repeat_interleave(counts, output_size=len(numbers))
        ends = self.groups.ends + (before + more).int()
        size = int(ends[-1])
        repeated = numbers.new_zeros(size).index_copy_(0, moved, numbers).cummax(0).values
        places = torch.cat([moved, moved.new_tensor([size])])[self.places]
        return Rows(self.order[repeated], places, Groups(ends), self.dropped), moved

    def in_order(self, values: Tensor) -> Tensor:
        """values [T, K] of tokens and their experts -> [N], of the rows."""
        return values.flatten().index_select(0, self.order)

    @cached_property
    def tokens(self) -> Tensor:
        """[N]: the number of each row's token."""
        each = self.places.shape[1]
        return self.order if each == 1 else self.order // each

    def spread(self, x: Tensor) -> Tensor:
        """x [T, H] -> the row of each token for each of its experts [N, H], outside autograd."""
        return x.index_select(0, self.tokens)

    def summed(self, rows: Tensor) -> Tensor:
        """rows [N, H] -> the sum of each token's rows [T, H], outside autograd. It is computed in fp32 or wider and
        rounded once."""
        if self.dropped:
            rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
        if self.places.shape[1] == 1:
            return rows.index_select(0, self.places.flatten())
        return F.embedding_bag(self.places, rows, mode="sum")


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return rows.spread(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.summed(grads[0].contiguous()), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return rows.summed(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.spread(grads[0]), None


def spread(x: Tensor, rows: Rows) -> Tensor:
    """x [T, H] -> [N, H]: the row of each token for each of its experts."""
    found: Tensor = _Spread.apply(x, rows)
    return found


def summed(x: Tensor, rows: Rows) -> Tensor:
    """x [N, H] -> [T, H]: the sum of each token's rows."""
    found: Tensor = _Summed.apply(x, rows)
    return found
