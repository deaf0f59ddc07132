"""Tensors from rank to rank: by memory where all of a group share a host, otherwise by gloo's messages."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from trivium.comms.host_memory.loans import Key, Receipt
from trivium.comms.mesh import Group, Waitable

Tensor = torch.Tensor

PIECE_BYTES = 256 << 10  # of what is added up at once, so that it stays in a core's cache


class Work(Waitable, Protocol):
    """A tensor on its way, of which one may ask whether it is there."""

    def is_completed(self) -> bool:
        """Whether `wait` would return at once, as far as is known."""


class _Message:
    """One of gloo's, which is waited for as long as its group now allows."""

    def __init__(self, work: dist.Work, group: Group) -> None:
        self._work, self._group = work, group

    def wait(self) -> None:
        """As in Work."""
        self._work.wait(*self._group.patience)

    def is_completed(self) -> bool:
        """As in Work."""
        return self._work.is_completed()


def begin_send(tensor: Tensor, to: int, group: Group, tag: int = 0) -> Work:
    """Start sending to the rank of index `to`; the tensor, contiguous, must not change until it was waited for."""
    if group.by_memory:
        return group.peers[to].lend(Key(group.number, tag), tensor)
    work = dist.isend(tensor, group.ranks[to], group=group.handle, tag=tag)
    assert work is not None, f"rank {group.ranks[to]} is not in the {group.role} group of this one"
    return _Message(work, group) if group.is_gloo else work


def begin_receive(out: Tensor, of: int, group: Group, tag: int = 0) -> Waitable:
    """Start receiving from the rank of index `of` into `out`, which is contiguous. Messages of one tag are received
    in the order in which they were sent."""
    if group.by_memory:
        return Receipt(group.peers[of], Key(group.number, tag), out)
    work = dist.irecv(out, group.ranks[of], group=group.handle, tag=tag)
    assert work is not None, f"rank {group.ranks[of]} is not in the {group.role} group of this one"
    return _Message(work, group) if group.is_gloo else work


class Exchange:
    """Under way: send[i] to the i-th rank of the group, and what it sends into receive[i]; nothing to oneself, and no
    message where a tensor is empty.

    All tensors are contiguous and must not be touched until it was waited for. Every rank of the group begins its
    exchanges in the same order; a tag of its own keeps each apart from those that are under way beside it.
    """

    def __init__(self, group: Group, *, send: Sequence[Tensor], receive: Sequence[Tensor]) -> None:
        tag = next(group.tags)
        self._tensors = (send, receive)
        others = list(_others(group))
        self._works = [begin_receive(receive[i], i, group, tag) for i in reversed(others) if len(receive[i])]
        self._works += [begin_send(send[i], i, group, tag) for i in others if len(send[i])]

    def wait(self) -> None:
        """Return when everything was received and sent."""
        for work in self._works:
            work.wait()
        self._works = []


class Combination:
    """Under way by memory: slices[i] to the i-th rank of the group, which adds up (or takes the largest of) what all
    sent it, in the order of the ranks. What others lent is read in pieces and never kept."""

    def __init__(self, group: Group, slices: Sequence[Tensor], out: Tensor, *, largest: bool = False) -> None:
        """out: contiguous, of the shape of this rank's slice; may be that slice itself, but none of the others."""
        self._group, self._own, self._out, self._largest = group, slices[group.index], out, largest
        self._key = Key(group.number, next(group.tags))
        self._loans = [group.peers[i].lend(self._key, slices[i]) for i in _others(group)]

    def wait(self) -> None:
        """Return when `out` is complete and every slice was taken."""
        group, own, out = self._group, self._own.view(-1), self._out.view(-1)
        lent = {i: group.peers[i].borrow(self._key, out.nbytes) for i in reversed(list(_others(group)))}
        width = out.element_size()
        # one column at least: where there are more ranks than numbers, some rank's slice has none
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


def combine(parts: Tensor, own: Tensor, index: int, out: Tensor, *, largest: bool = False) -> None:
    """The sum (or the largest) of `parts`, one of each rank, in the order of the ranks. The place of this rank's
    `index` is empty: its own part is `own`, which may be `out`."""
    if len(parts) == 2:
        two: Callable[..., Tensor] = torch.maximum if largest else torch.add
        two(own, parts[1 - index], out=out)
        return
    parts[index].copy_(own)
    if largest:
        torch.amax(parts, 0, out=out)
    else:
        torch.sum(parts, 0, dtype=out.dtype, out=out)


def _others(group: Group) -> Iterator[int]:
    """The farther ranks in turn, so that no rank is everybody's first."""
    return ((group.index + step) % group.size for step in range(1, group.size))
