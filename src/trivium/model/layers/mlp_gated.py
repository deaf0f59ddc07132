"""The feed-forward half with a gate.

Legend: S positions, B sequences, H hidden, E feed-forward columns here.
"""

import torch
from torch import nn

from trivium.model.inputs import Inputs
from trivium.model.layers.half import Around, Half
from trivium.model.layers.linear import RowLinear
from trivium.parallel.tensor.regions import Region
from trivium.plan.layers.mlp_gated import MlpGated as Described


class GateUp(nn.Module):
    """The two input matrices side by side: [2, E, H]."""

    def __init__(self, columns: int, hidden: int, region: Region) -> None:
        super().__init__()
        self.region = region
        self.weight = nn.Parameter(torch.empty(2, columns, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S here, B, H] -> [S, B, 2 E], the gate first."""
        return self.region.column_product(x, self.weight)


class MlpGated(Half):
    """gate and up (columns split) -> SwiGLU -> down (rows split)."""

    def __init__(self, part: Described, around: Around) -> None:
        super().__init__(around)
        self.function = around.operations.gated["silu"]
        self.function_again = around.recompute.activation_function
        columns = part.columns // around.region.group.size
        self.up = GateUp(columns, part.hidden, around.region)
        self.down = RowLinear(part.hidden, columns, around.region, bias=False)

    @property
    def last(self) -> RowLinear:
        return self.down

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        x = self.up(x)
        return self.down.of_activated(x, self.function) if self.function_again else self.down(self.function(x))
