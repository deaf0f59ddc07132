"""The feed-forward half with a gate.

Legend: S positions, B sequences, H hidden, E feed-forward columns here.
"""

import torch

from trivium.model.inputs import Inputs
from trivium.model.layers.half import Around, Half
from trivium.model.layers.linear import ColumnLinear, RowLinear
from trivium.plan.layers.mlp_gated import MlpGated as Described


class MlpGated(Half):
    """gate and up (columns split) -> SwiGLU -> down (rows split)."""

    def __init__(self, part: Described, around: Around) -> None:
        super().__init__(around)
        self.function = around.operations.gated["silu"]
        self.function_again = around.recompute.activation_function
        columns = part.columns // around.region.group.size
        self.up = ColumnLinear((2, columns), part.hidden, around.region, bias=False)  # the gate first
        self.down = RowLinear(part.hidden, columns, around.region, bias=False)

    @property
    def last(self) -> RowLinear:
        return self.down

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        x = self.up(x, inputs)
        if self.function_again:
            return self.down.of_activated(x, inputs, self.function)
        return self.down(self.function(x), inputs)
