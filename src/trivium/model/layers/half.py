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
    """Attention or a feed-forward half. Its forward is the products, up to that of `last`, which communicate; the
    wiring gives it its norms and a name for dropout, and adds the bias of `last`."""

    norm: nn.Module
    site: str

    def __init__(self, around: Around) -> None:
        super().__init__()
        self.layer, self.region = around.layer, around.region

    @property
    @abstractmethod
    def last(self) -> RowLinear:
        """The row-split layer at the end, whose bias is still to be added."""

    @abstractmethod
    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H]."""
