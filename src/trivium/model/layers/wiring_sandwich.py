"""Norms before and after each half.

Legend: B sequences, S positions, H hidden.
"""

import torch

from trivium.model.inputs import Inputs
from trivium.model.layers.half import Half
from trivium.model.layers.wiring import Sequential


class Sandwich(Sequential):
    """x + after_norm(attention(norm(x))), then x + after_norm(feed_forward(norm(x)))."""

    def _leave(self, half: Half, y: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return what is added to the residual stream."""
        y = half.get_submodule("after_norm")(half.add_bias(y))
        return inputs.drop(y, self.rate, half.site, self.region)
