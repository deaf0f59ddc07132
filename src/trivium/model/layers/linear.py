"""A linear layer's parameters on this rank; communication belongs to the region around it."""

import torch
from torch import nn

from trivium.kernels.activations import Activation
from trivium.parallel.tensor.regions import Region
from trivium.parallel.tensor.row_product import row_product


class ColumnLinear(nn.Module):
    """y = x W^T (+ b) where the outputs are split over tensor ranks."""

    def __init__(self, outputs: int, inputs: int, region: Region, *, bias: bool) -> None:
        super().__init__()
        self.region = region
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S here, B, inputs] -> [S, B, outputs here]."""
        return self.region.column_product(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer whose inputs are split over tensor ranks: partial sums first, the bias once after them."""

    def __init__(self, outputs: int, inputs: int, region: Region, *, bias: bool) -> None:
        super().__init__()
        self.region = region
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S, B, inputs here] -> [S here, B, outputs], which `add_bias` completes."""
        if self._adds_bias_itself:
            return self.region.linear(x, self.weight, self.bias)
        return self.region.row_product(x, self.weight)

    def of_activated(self, x: torch.Tensor, function: Activation) -> torch.Tensor:
        """The same of function(x), which is not kept: the backward computes it again."""
        region = self.region
        if self._adds_bias_itself:
            given = x, self.weight, self.bias, region.weight_gradients, region.arithmetic
            return row_product(*given, function=function)
        return region.row_product(x, self.weight, function)

    def add_bias(self, x: torch.Tensor) -> torch.Tensor:
        """The bias, added once to the completed sum, where the product has not."""
        return x if self.bias is None or self._adds_bias_itself else x + self.bias

    @property
    def _adds_bias_itself(self) -> bool:
        """Of one rank the product does; a sum over several must be complete before."""
        return self.region.group.size == 1
