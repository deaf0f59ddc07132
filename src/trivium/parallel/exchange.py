"""Tensors between all ranks of a group at once, each pair directly."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from trivium.parallel.mesh import Group

Tensor = torch.Tensor


class Exchange:
    """Under way: send[i] to the i-th rank of the group, and what it sends into receive[i]; nothing to oneself.

    All tensors are contiguous and must not be touched until it was waited for. Every rank of the group begins its
    exchanges in the same order; a tag of its own keeps each apart from those that are under way beside it.
    """

    def __init__(self, group: Group, *, send: Sequence[Tensor], receive: Sequence[Tensor]) -> None:
        tag = next(group.tags)
        # The farther ranks in turn, so that no rank is everybody's first.
        others = [(group.index + step) % group.size for step in range(1, group.size)]
        self._tensors = (send, receive)
        self._works = [
            dist.irecv(receive[i], group.ranks[i], group=group.handle, tag=tag) for i in reversed(others)
        ]
        self._works += [dist.isend(send[i], group.ranks[i], group=group.handle, tag=tag) for i in others]

    def wait(self) -> None:
        """Return when everything was received and sent."""
        for work in self._works:
            assert work is not None, "this rank is in the group of its own exchange"
            work.wait()
        self._works = []
