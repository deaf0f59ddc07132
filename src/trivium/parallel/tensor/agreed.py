"""The largest values of operands over the ranks that hold parts of them, so that every layout scales alike."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trivium.comms.collectives import all_reduce_
from trivium.comms.group import Group

Tensor = torch.Tensor


@dataclass(frozen=True)
class Agreed:
    """groups: the ranks that divide each dimension of a linear layer's operands: T tokens, I inputs, O outputs."""

    groups: Mapping[str, tuple[Group, ...]]

    def __call__(self, amax: Tensor, dimensions: str) -> Tensor:
        """Return the largest values over all ranks that divide one of these dimensions; it may change `amax`."""
        for group in dict.fromkeys(group for name in dimensions for group in self.groups[name]):
            amax = all_reduce_(amax.contiguous(), group, largest=True)
        return amax
