"""Halves whose results are multiplied by a constant.

Legend: B sequences, S positions, H hidden.
"""

import torch

from trivium.model.inputs import Inputs
from trivium.model.layers.half import Around, Half
from trivium.model.layers.wiring import Sequential
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.wiring_scaled import SequentialScaled as Described


class SequentialScaled(Sequential):
    """x + scale · attention(x), then x + scale · feed_forward(x)."""

    def __init__(self, layer: Layer, attention: Half, mlp: Half, around: Around) -> None:
        super().__init__(layer, attention, mlp, around)
        assert isinstance(layer.wiring, Described), f"the wiring of this layer is {layer.wiring}"
        self.scale = layer.wiring.scale

    def _leave(self, half: Half, y: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return what is added to the residual stream."""
        return super()._leave(half, y, inputs) * self.scale
