"""The feed-forward half of a block.

Legend: S positions, B sequences, H hidden, E feed-forward columns here.
"""

import torch
from torch import nn

from trivium.kernels.gelu import Gelu, gelu
from trivium.kernels.swiglu import SwiGlu, swiglu
from trivium.model.inputs import Inputs
from trivium.model.layers.half import Half
from trivium.model.layers.linear import ColumnLinear, RowLinear
from trivium.parallel.tensor.regions import Region
from trivium.plan.model_shape import ModelShape


class GateUp(nn.Module):
    """SwiGLU's two input matrices side by side: [2, E, H]."""

    def __init__(self, columns: int, hidden: int, region: Region) -> None:
        super().__init__()
        self.region = region
        self.weight = nn.Parameter(torch.empty(2, columns, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S here, B, H] -> [S, B, 2 E], the gate first."""
        return self.region.column_product(x, self.weight)


class Mlp(Half):
    """norm -> up (columns split), GELU or SwiGLU -> down (rows split); or the norm at the end.

    function_again: what the activation function gives is computed again in the backward.
    """

    def __init__(
        self, model: ModelShape, layer: int, region: Region, *, function_again: bool = False
    ) -> None:
        super().__init__("mlp", model, layer, region)
        self.function_again = function_again
        columns = model.ffn_width // region.group.size
        gpt = model.family == "gpt"
        self.up = (
            ColumnLinear(columns, model.hidden, region, bias=True)
            if gpt
            else GateUp(columns, model.hidden, region)
        )
        self.down = RowLinear(model.hidden, columns, region, bias=gpt)

    @property
    def last(self) -> RowLinear:
        """Its rows are split."""
        return self.down

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H]."""
        x, gpt = self.up(x), self.model.family == "gpt"
        if self.function_again:
            return self.down.of_activated(x, Gelu() if gpt else SwiGlu())
        return self.down(gelu(x) if gpt else swiglu(x))
