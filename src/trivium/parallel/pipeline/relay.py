"""Hidden states from stage to stage, forward only: for answering, where no schedule is needed."""

import torch

from trivium.comms.group import Group, Work

Tensor = torch.Tensor
MAX_SENDS_IN_FLIGHT = 4  # tensors a rank may be ahead of the next


class Relay:
    """Point-to-point messages in a group whose ranks process the same batches in the same order."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._sent: list[tuple[Work, Tensor]] = []

    def receive(self, out: Tensor, index: int) -> Tensor:
        """Receive the tensor that the rank with this index passed on into `out`, and return it."""
        self._group.transport.receive(out, index, self._group).wait()
        return out

    def pass_on(self, x: Tensor, index: int) -> None:
        """Hand a tensor to the rank of this index; returns before it has arrived."""
        x = x.contiguous()
        self._group.count("send", x)
        self._sent.append((self._group.transport.send(x, index, self._group), x))
        while len(self._sent) > MAX_SENDS_IN_FLIGHT:
            self._sent.pop(0)[0].wait()

    def finish(self) -> None:
        """Return when everything that was passed on has been taken."""
        for work, _ in self._sent:
            work.wait()
        self._sent = []
