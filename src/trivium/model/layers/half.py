"""The parts that both halves of a layer share.

Legend: B sequences, S positions, H hidden.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import nn

from trivium.comms.group import Group
from trivium.kernels.operations import Operations
from trivium.model.inputs import Inputs
from trivium.model.layers.linear import RowLinear
from trivium.parallel.context.attention import Context
from trivium.parallel.tensor.regions import Region
from trivium.plan.recompute import Recompute


class Around(NamedTuple):
    """The surroundings of a half: the number of its layer, its tensor region and context ranks, what the backward pass
    recomputes, the operations of the device, and the ranks that divide the experts."""

    layer: int
    region: Region
    context: Context
    recompute: Recompute
    operations: Operations
    expert: Group

    @property
    def recomputes_attention(self) -> bool:
        """Whether the core of attention in this layer is computed again in the backward."""
        return self.recompute.mode_of(self.layer) == "attention"


class Half(nn.Module, ABC):
    """Attention or a feed-forward half. Its forward is the products, up to the last one, which communicate; the wiring
    gives it its norms and a name for dropout, and adds the bias of the last product.

    traced: whether torch.compile may look into it.
    """

    norm: nn.Module
    site: str
    traced = True

    def __init__(self, around: Around) -> None:
        super().__init__()
        self.layer, self.region = around.layer, around.region

    @property
    def last(self) -> RowLinear | None:
        """The row-split layer at the end, if there is one, whose bias is still to be added."""
        return None

    @abstractmethod
    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H]."""

    def add_bias(self, x: torch.Tensor) -> torch.Tensor:
        """Add the bias of the last product, where the product has not."""
        return x if self.last is None else self.last.add_bias(x)
