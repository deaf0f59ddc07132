"""What the two halves of a block share: a norm before its products or after them, and what is done to their result.

Legend: B sequences, S positions, H hidden.
"""

from abc import ABC, abstractmethod

import torch
from torch import nn

from trivium.model.inputs import Inputs
from trivium.model.layers.linear import RowLinear
from trivium.model.layers.norm import Norm
from trivium.parallel.tensor.regions import Region
from trivium.plan.model_shape import ModelShape


class Half(nn.Module, ABC):
    """A block adds leave(half(enter(x))) to x. The forward is the products, up to that of `last`, which communicate:
    what is around them is called by the block itself."""

    def __init__(self, name: str, model: ModelShape, layer: int, region: Region) -> None:
        super().__init__()
        self.model, self.layer, self.region = model, layer, region
        # Made once: where a block is compiled, a name made from its number would make each layer a graph of its own.
        self.site = f"layers.{layer}.{name}"
        self.norm, self.norm_first = Norm(model), model.norm_position == "before"

    @property
    @abstractmethod
    def last(self) -> RowLinear:
        """The layer whose bias is still to be added."""

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H], normed where the norm is before."""
        return self.norm(x) if self.norm_first else x

    def leave(self, y: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H], to be added to what entered."""
        y = self.last.add_bias(y)
        y = y if self.norm_first else self.norm(y)
        return inputs.drop(y, self.model.dropout, self.site, self.region)
