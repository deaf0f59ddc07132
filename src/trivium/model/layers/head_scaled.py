"""A head whose logits are multiplied by a constant."""

import torch

from trivium.kernels.operations import Operations
from trivium.model.layers.head import Head
from trivium.parallel.tensor.regions import Region
from trivium.plan.layers.head_scaled import HeadScaled as Described
from trivium.plan.model_shape import ModelShape


class HeadScaled(Head):
    """norm -> scale · logits."""

    def __init__(self, model: ModelShape, region: Region, operations: Operations) -> None:
        super().__init__(model, region, operations)
        part = model.head_part
        assert isinstance(part, Described), f"the head of this model is {part}"
        self.scale = part.scale

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is multiplied with the table, [..., H]: smaller than the logits, it is scaled in their place."""
        return super().normed(x) * self.scale
