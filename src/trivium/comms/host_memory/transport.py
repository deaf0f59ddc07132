"""The transport between ranks of one host: the receiver reads a tensor from the memory of the sending process."""

from collections.abc import Mapping, Sequence

import torch

from trivium.comms.group import Group, PendingResult, Waitable, Work
from trivium.comms.host_memory.loans import INLINE_BYTES, HostPeer, Key, Receipt
from trivium.comms.transports import Exchange, Gloo, combine, gather_directly, others

Tensor = torch.Tensor

PIECE_BYTES = 256 << 10  # size of the pieces that are added, chosen to stay in a core's cache


class HostMemory(Gloo):
    """Messages by memory. peers: the other ranks of the group, by their index."""

    def __init__(self, peers: Mapping[int, HostPeer]) -> None:
        super().__init__()
        self.peers = peers

    def send(self, tensor: Tensor, to: int, group: Group, tag: int = 0) -> Work:
        return self.peers[to].lend(Key(group.number, tag), tensor)

    def receive(self, out: Tensor, of: int, group: Group, tag: int = 0) -> Waitable:
        return Receipt(self.peers[of], Key(group.number, tag), out)

    def all_reduce(self, x: Tensor, group: Group, *, largest: bool = False) -> PendingResult:
        """Each rank combines one slice, which the others then read. Of a small tensor each rank combines everything."""
        if x.nbytes <= INLINE_BYTES:
            every = Combination(group, self.peers, [x] * group.size, x, largest=largest)
            return PendingResult(every, x, group=group)
        slices = list(x.view(-1).tensor_split(group.size))
        own = slices[group.index]

        def gather() -> None:
            group.wait_for(Exchange(group, send=[own] * group.size, receive=slices))

        return PendingResult(Combination(group, self.peers, slices, own, largest=largest), x, gather, group)

    def all_gather(self, out: Tensor, x: Tensor, group: Group) -> Waitable:
        return gather_directly(out, x, group)

    def reduce_scatter(self, x: Tensor, group: Group) -> PendingResult:
        shape = (x.shape[0] // group.size, *x.shape[1:])
        out = x.new_empty(shape)
        return PendingResult(Combination(group, self.peers, list(x.view(group.size, *shape)), out), out, group=group)

    def all_to_all(self, out: Tensor, parts: Tensor, group: Group) -> Waitable:
        return self.all_to_all_uneven(list(parts), list(out), group)

    def wait_at_most(self, seconds: float) -> None:
        for peer in self.peers.values():
            peer.wait_at_most(seconds)


class Combination:
    """A pending reduce-scatter by memory. The i-th rank of the group receives slices[i] of all ranks and computes their
    sum (or maximum) in the order of the ranks. It reads them in pieces and does not keep them."""

    def __init__(
        self,
        group: Group,
        peers: Mapping[int, HostPeer],
        slices: Sequence[Tensor],
        out: Tensor,
        *,
        largest: bool = False,
    ) -> None:
        """out: a contiguous tensor with the shape of this rank's slice. It may be that slice, but no other one."""
        self._group, self._peers, self._own, self._out, self._largest = group, peers, slices[group.index], out, largest
        self._key = Key(group.number, next(group.tags))
        self._loans = [peers[i].lend(self._key, slices[i]) for i in others(group)]

    def wait(self) -> None:
        """Return when `out` is complete and the other ranks have read their slices."""
        group, own, out = self._group, self._own.view(-1), self._out.view(-1)
        lent = {i: self._peers[i].borrow(self._key, out.nbytes) for i in reversed(list(others(group)))}
        width = out.element_size()
        # At least one column: with more ranks than elements, some slices are empty.
        rows = out.new_empty((group.size, max(1, min(out.numel(), PIECE_BYTES // width))))
        for start in range(0, out.numel(), rows.shape[1]):
            here = slice(start, min(start + rows.shape[1], out.numel()))
            parts = rows[:, : here.stop - here.start]
            for i, borrowed in lent.items():
                borrowed.read(parts[i], start * width)
            combine(parts, own[here], group.index, out[here], largest=self._largest)
        for borrowed in lent.values():
            borrowed.give_back()
        for loan in self._loans:
            loan.wait()
