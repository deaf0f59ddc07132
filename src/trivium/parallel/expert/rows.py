"""The rows of experts: one for each expert that a token visits, in the order of the experts.

Legend: T tokens, K experts of a token, N rows of all experts, H hidden.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from trivium.kernels.grouped import Groups

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """tokens [N]: the token of each row; places [T, K]: the rows of each token; groups: the rows of each expert."""

    tokens: Tensor
    places: Tensor
    groups: Groups

    @classmethod
    def of(cls, chosen: Tensor, experts: int) -> "Rows":
        """The rows of the chosen experts [T, K] of each token; those of one expert in the order of the tokens."""
        ids, order = chosen.flatten().sort(stable=True)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        numbers = torch.arange(experts, device=order.device)
        ends = torch.searchsorted(ids, numbers, right=True, out_int32=True)
        return cls(order // chosen.shape[1], places.view_as(chosen), Groups(ends))

    def in_order(self, values: Tensor) -> Tensor:
        """values [T, K] of tokens and their experts -> [N], of the rows."""
        return torch.empty_like(values.flatten()).index_copy(0, self.places.flatten(), values.flatten())

    def spread(self, x: Tensor) -> Tensor:
        """x [T, H] -> the row of each token for each of its experts [N, H], outside autograd."""
        return x.index_select(0, self.tokens)

    def summed(self, rows: Tensor) -> Tensor:
        """rows [N, H] -> the sum of each token's rows [T, H], outside autograd. It is computed in fp32 or wider and
        rounded once."""
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
