"""One transformer block."""

from typing import Any

import torch
from torch import nn

from trivium.kernels.recompute import recomputed
from trivium.model.inputs import Inputs
from trivium.model.layers.attention import Attention
from trivium.model.layers.mlp import Mlp
from trivium.parallel.context.attention import Context
from trivium.parallel.tensor.regions import Region
from trivium.plan.model_shape import ModelShape
from trivium.plan.recompute import Recompute


class Block(nn.Module):
    """x + attention(x), then x + mlp(x)."""

    def __init__(
        self, model: ModelShape, layer: int, region: Region, context: Context, recompute: Recompute
    ) -> None:
        super().__init__()
        self.mode = recompute.mode_of(layer)
        self.attention = Attention(model, layer, region, context, recompute_core=self.mode == "attention")
        self.mlp = Mlp(model, layer, region, function_again=recompute.activation_function)
        self._of_training = self._forward

    def compile_training(self, options: dict[str, Any] | None) -> None:
        """Let torch.compile fuse what a training step computes; hooks, and recomputing of layers, stay outside."""
        self._of_training = torch.compile(self._forward, dynamic=False, options=options)

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H]."""
        if not self.training:
            return self._forward(x, inputs)
        if self.mode == "layer":
            return recomputed(self._of_training, x, inputs)
        return self._of_training(x, inputs)

    def _forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        # Written out here: a product that torch.compile does not look into ends the graph of the function that calls
        # it. So bias, sum and norm, which are between two products, are one graph, forward and backward.
        attention, mlp = self.attention, self.mlp
        x = x + attention.leave(attention(attention.enter(x), inputs), inputs)
        return x + mlp.leave(mlp(mlp.enter(x), inputs), inputs)
