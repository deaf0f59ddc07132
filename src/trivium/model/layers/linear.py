"""A linear layer's parameters on this rank; communication belongs to the region around it."""

import torch
from torch import nn

from trivium.kernels.activations import Activation
from trivium.parallel.tensor.regions import Region
from trivium.parallel.tensor.row_product import row_product
from trivium.plan.adapters import Adapted


class Added(nn.Module):
    """The parameters of an adapter on one of `ranks` tensor ranks."""

    def __init__(self, adapted: Adapted, ranks: int) -> None:
        super().__init__()
        self.adapter = adapted.adapter
        for row in adapted.adapter.rows(adapted.base):
            shape = [size // ranks if n == row.split else size for n, size in enumerate(row.shape)]
            self.register_parameter(row.name, nn.Parameter(torch.empty(shape)))

    def forward(
        self, y: torch.Tensor, x: torch.Tensor, linear: "Linear", function: Activation | None = None
    ) -> torch.Tensor:
        """Adapt the result y of a linear layer; see `Adapter.adapted`."""
        found: torch.Tensor = self.adapter.adapted(y, x, linear, dict(self.named_parameters()), function)
        return found


class Linear(nn.Module):
    """y = x W^T (+ b), and what an adapter makes of it. outputs: one size, or several if the weight has as many
    dimensions more."""

    splits_outputs: bool
    adapter: Added | None

    def __init__(self, outputs: int | tuple[int, ...], inputs: int, region: Region, *, bias: bool) -> None:
        super().__init__()
        self.region, self.adapter = region, None
        outputs = (outputs,) if isinstance(outputs, int) else outputs
        self.weight = nn.Parameter(torch.empty(*outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None


class ColumnLinear(Linear):
    """A linear layer whose outputs are split over tensor ranks."""

    splits_outputs = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S here, B, inputs] -> [S, B, outputs here]."""
        y = self.region.column_product(x, self.weight, self.bias)
        return y if self.adapter is None else self.adapter(y, x, self)


class RowLinear(Linear):
    """A linear layer whose inputs are split over tensor ranks: partial sums first, the bias once after them."""

    splits_outputs = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S, B, inputs here] -> [S here, B, outputs], which `add_bias` completes."""
        if self._adds_bias_itself:
            y = self.region.linear(x, self.weight, self.bias)
        else:
            y = self.region.row_product(x, self.weight)
        return y if self.adapter is None else self.adapter(y, x, self)

    def of_activated(self, x: torch.Tensor, function: Activation) -> torch.Tensor:
        """The same of function(x), which is not kept: the backward computes it again."""
        region = self.region
        if self._adds_bias_itself:
            given = x, self.weight, self.bias, region.weight_gradients, region.arithmetic
            y = row_product(*given, function=function)
        else:
            y = region.row_product(x, self.weight, function)
        return y if self.adapter is None else self.adapter(y, x, self, function)

    def add_bias(self, x: torch.Tensor) -> torch.Tensor:
        """The bias, added once to the completed sum, where the product has not."""
        return x if self.bias is None or self._adds_bias_itself else x + self.bias

    @property
    def _adds_bias_itself(self) -> bool:
        """Whether the product adds the bias: on one rank it does; a sum over several ranks must be complete first."""
        return self.region.group.size == 1
