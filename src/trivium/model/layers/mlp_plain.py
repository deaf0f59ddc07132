"""The feed-forward half without a gate.

Legend: S positions, B sequences, H hidden, E feed-forward columns here.
"""

import torch

from trivium.model.inputs import Inputs
from trivium.model.layers.half import Around, Half
from trivium.model.layers.linear import ColumnLinear, RowLinear
from trivium.plan.layers.mlp_plain import MlpPlain as Described


class MlpPlain(Half):
    """up (columns split) -> activation function -> down (rows split)."""

    def __init__(self, part: Described, around: Around) -> None:
        super().__init__(around)
        self.function = around.operations.activations[part.function]
        self.function_again = around.recompute.activation_function
        columns = part.columns // around.region.group.size
        self.up = ColumnLinear(columns, part.hidden, around.region, bias=part.bias)
        self.down = RowLinear(part.hidden, columns, around.region, bias=part.bias)

    @property
    def last(self) -> RowLinear:
        return self.down

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        x = self.up(x, inputs)
        if self.function_again:
            return self.down.of_activated(x, inputs, self.function)
        return self.down(self.function(x), inputs)
