"""Attention and the feed-forward half side by side.

Legend: B sequences, S positions, H hidden.
"""

import torch

from trivium.model.inputs import Inputs
from trivium.model.layers.half import Half
from trivium.model.layers.wiring import Wiring


class SideBySide(Wiring):
    """x + attention(norm(x)) + feed_forward(norm(x))."""

    def _forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        attention, mlp = self.attention, self.mlp
        added = self._leave(attention, attention(attention.norm(x), inputs), inputs)
        return x + added + self._leave(mlp, mlp(mlp.norm(x), inputs), inputs)

    def _leave(self, half: Half, y: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        return inputs.drop(half.add_bias(y), self.rate, half.site, self.region)
