"""A linear layer's parameters on this rank."""

import torch
import torch.nn.functional as F
from torch import nn


class Linear(nn.Module):
    """y = x W^T (+ b), where W is this rank's shard; communication belongs to the region around it."""

    def __init__(self, outputs: int, inputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs] -> [..., outputs]."""
        return F.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer whose inputs are split over tensor ranks: partial sums first, the bias once after them."""

    def __init__(self, outputs: int, inputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def partial(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs here] -> this rank's part of the sum, [..., outputs]."""
        return F.linear(x, self.weight)

    def add_bias(self, x: torch.Tensor) -> torch.Tensor:
        """The bias, added once to the completed sum."""
        return x if self.bias is None else x + self.bias
