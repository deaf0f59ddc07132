"""A head whose logits are soft-capped.

Legend: S positions, B sequences, H hidden.
"""

import torch
from torch import nn

from trivium.kernels.operations import Operations
from trivium.model.layers.head import Head
from trivium.parallel.tensor.regions import Region, split_cross_entropy
from trivium.plan.layers.head_capped import HeadCapped as Described
from trivium.plan.model_shape import ModelShape


class HeadCapped(Head):
    """norm -> cap · tanh(logits / cap)."""

    def __init__(self, model: ModelShape, region: Region, operations: Operations) -> None:
        super().__init__(model, region, operations)
        part = model.head_part
        assert isinstance(part, Described), f"the head of this model is {part}"
        self.cap = part.cap

    def finished(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the logits, given the products with rows of the table."""
        return self.cap * torch.tanh(scores / self.cap)

    def _losses(self, x: torch.Tensor, table: nn.Parameter, targets: torch.Tensor) -> torch.Tensor:
        """Per token, [S, B]; where there is a z-loss both, [2, S, B]."""
        logits = self.local_logits(x, table)
        return split_cross_entropy(logits, targets, self.region.group, self.model.vocabulary, self._z_loss)
