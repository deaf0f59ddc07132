"""ZeRO stage 3: weights of 8-bit products are gathered as their codes, a byte each.

The scale of a matrix is the one that its layer finds: that of the largest value of the whole matrix, over the ranks
that hold parts of it. So the layer gives what was gathered the same codes again, and its products do not change.
"""

from collections.abc import Sequence

import torch

from trivium.comms.collectives import all_gather_into, all_reduce_
from trivium.comms.group import Group, Waitable
from trivium.kernels.float8 import Format, rounded
from trivium.kernels.scaled import Scaling

Tensor = torch.Tensor


class NarrowGather:
    """The gather of one bucket. matrices: the elements of each matrix in it. owned: those of this rank. groups: the
    ranks that hold parts of the matrices; the first are those that gather."""

    def __init__(self, matrices: Sequence[slice], owned: slice, scaling: Scaling, groups: tuple[Group, Group]) -> None:
        self._matrices, self._owned, self._scaling, self._groups = matrices, owned, scaling, groups
        self._codes = self._inverse = torch.empty(0)

    @property
    def _format(self) -> Format:
        return self._scaling.formats[1]

    def begin(self, shard: Tensor, size: int) -> Waitable | None:
        """Start to gather all `size` elements; return the work to wait for."""
        wide = torch.promote_types(shard.dtype, torch.float32)
        amax, first = torch.zeros(len(self._matrices), dtype=wide, device=shard.device), self._owned.start
        here = [slice(max(m.start, first) - first, min(m.stop, self._owned.stop) - first) for m in self._matrices]
        for number, where in enumerate(here):
            if where.start < where.stop:
                amax[number] = shard[where].abs().amax()
        for group in self._groups:
            all_reduce_(amax, group, largest=True)
        scales = self._scaling.scales(amax, self._format)
        own = torch.zeros(len(shard), dtype=torch.uint8, device=shard.device)
        for where, scale in zip(here, scales, strict=True):
            if where.start < where.stop:
                own[where] = rounded(shard[where].to(wide) * scale, self._format).view(torch.uint8)
        self._inverse, self._codes = scales.reciprocal(), own.new_empty(size)
        return all_gather_into(self._codes, own, self._groups[0], wait=False)

    def finish(self, weights: Tensor) -> None:
        """Write the numbers of the codes, which have arrived, to the weights."""
        for where, inverse in zip(self._matrices, self._inverse, strict=True):
            values = self._codes[where].view(self._format.dtype).to(self._inverse.dtype) * inverse
            weights[where].copy_(values)
        self._codes = self._codes.new_empty(0)
