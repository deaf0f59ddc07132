"""Transports over torch's backends, and the choice among all transports.

`host_memory/` has another transport, for ranks of one host. It is used if it is installed and the host allows it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist

from trivium.comms.group import Group, PendingResult, Transport, Waitable, Work

Tensor = torch.Tensor

# From this size on, ranks of a gloo group exchange their slices directly. gloo's own collectives copy sent and received
# data, which then costs more than their worker threads save.
DIRECT_BYTES = 8 << 20
_HOST_MEMORY = f"{__package__}.host_memory"

_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Torch:
    """Messages by NCCL, or another backend of torch that has every collective."""

    posts_ahead = False

    def sent_bytes(self, collective: str, x: Tensor, ranks: int) -> int:
        return x.numel() * x.element_size()

    def send(self, tensor: Tensor, to: int, group: Group, tag: int = 0) -> Work:
        work = dist.isend(tensor, group.ranks[to], group=group.handle, tag=tag)
        assert work is not None, f"rank {group.ranks[to]} is not in the {group.role} group of this one"
        return work

    def receive(self, out: Tensor, of: int, group: Group, tag: int = 0) -> Waitable:
        work = dist.irecv(out, group.ranks[of], group=group.handle, tag=tag)
        assert work is not None, f"rank {group.ranks[of]} is not in the {group.role} group of this one"
        return work

    def all_reduce(self, x: Tensor, group: Group, *, largest: bool = False) -> PendingResult:
        operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        return PendingResult(dist.all_reduce(x, operation, group=group.handle, async_op=True), x, group=group)

    def all_gather(self, out: Tensor, x: Tensor, group: Group) -> Waitable:
        work: Waitable = _gather(out, x.contiguous(), group=group.handle, async_op=True)
        return work

    def reduce_scatter(self, x: Tensor, group: Group) -> PendingResult:
        out = x.new_empty((x.shape[0] // group.size, *x.shape[1:]))
        return PendingResult(_scatter(out, x, group=group.handle, async_op=True), out, group=group)

    def all_to_all(self, out: Tensor, parts: Tensor, group: Group) -> Waitable:
        work = dist.all_to_all_single(out, parts, group=group.handle, async_op=True)
        assert work is not None, f"this rank is not in the {group.role} group"
        return work

    def all_to_all_uneven(self, send: Sequence[Tensor], receive: Sequence[Tensor], group: Group) -> Waitable:
        work = dist.all_to_all(list(receive), list(send), group=group.handle, async_op=True)
        assert work is not None, f"this rank is not in the {group.role} group"
        return work

    def rotate(self, sent: Sequence[Tensor], received: Sequence[Tensor], group: Group, tag: int) -> list[Waitable]:
        following, previous = neighbours(group)
        operations = []
        for n, (out, back) in enumerate(zip(sent, received, strict=True), tag):
            operations.append(dist.P2POp(dist.isend, out, group.ranks[following], group.handle, n))
            operations.append(dist.P2POp(dist.irecv, back, group.ranks[previous], group.handle, n))
        return list(dist.batch_isend_irecv(operations))

    def wait_at_most(self, seconds: float) -> None:
        """Do nothing: the process group has the timeout of all messages."""


class Gloo(Torch):
    """Messages by gloo, which lacks some collectives and is slow at others."""

    posts_ahead = True

    def __init__(self) -> None:
        self._timeout: list[timedelta] = []  # timeout of direct messages, which do not have their process group's

    def send(self, tensor: Tensor, to: int, group: Group, tag: int = 0) -> Work:
        return _Message(super().send(tensor, to, group, tag), self._timeout)

    def receive(self, out: Tensor, of: int, group: Group, tag: int = 0) -> Waitable:
        return _Message(super().receive(out, of, group, tag), self._timeout)

    def all_gather(self, out: Tensor, x: Tensor, group: Group) -> Waitable:
        if out.nbytes >= DIRECT_BYTES:
            return gather_directly(out, x, group)
        if x.data_ptr() == out.data_ptr() + group.index * x.nbytes:
            x = x.clone()  # unlike NCCL, gloo does not gather in place
        return super().all_gather(out, x, group)

    def reduce_scatter(self, x: Tensor, group: Group) -> PendingResult:
        """Exchange slices and add them here, because gloo's reduce-scatter is slower than its all-reduce."""
        shape = (x.shape[0] // group.size, *x.shape[1:])
        out, parts = x.new_empty(shape), x.new_empty((group.size, *shape))
        if x.nbytes < DIRECT_BYTES:
            work = dist.all_to_all_single(parts.view(x.shape), x, group=group.handle, async_op=True)
            return PendingResult(work, out, lambda: torch.sum(parts, 0, out=out), group)
        slices = list(x.view(group.size, *shape))
        add_up = partial(combine, parts, slices[group.index], group.index, out)
        return PendingResult(Exchange(group, send=slices, receive=list(parts)), out, add_up, group)

    def all_to_all_uneven(self, send: Sequence[Tensor], receive: Sequence[Tensor], group: Group) -> Waitable:
        receive[group.index].copy_(send[group.index])
        return Exchange(group, send=send, receive=receive)

    def rotate(self, sent: Sequence[Tensor], received: Sequence[Tensor], group: Group, tag: int) -> list[Waitable]:
        following, previous = neighbours(group)
        sends: list[Waitable] = [self.send(x, following, group, n) for n, x in enumerate(sent, tag)]
        return [*(self.receive(x, previous, group, n) for n, x in enumerate(received, tag)), *sends]

    def wait_at_most(self, seconds: float) -> None:
        self._timeout[:] = [timedelta(seconds=seconds)]


class _Message:
    """A direct message of gloo."""

    def __init__(self, work: Any, timeout: Sequence[timedelta]) -> None:
        self._work, self._timeout = work, timeout

    def wait(self) -> None:
        """Return when the message is done, or raise after the current timeout of the transport."""
        self._work.wait(*self._timeout)

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())


class Exchange:
    """A pending exchange: send[i] goes to the i-th rank of the group, whose message is received into receive[i]. A rank
    sends nothing to itself, and empty tensors are not sent.

    All tensors are contiguous; do not read or write them before `wait()` has returned. Every rank of the group starts
    its exchanges in the same order, and each exchange has its own tag.
    """

    def __init__(self, group: Group, *, send: Sequence[Tensor], receive: Sequence[Tensor]) -> None:
        tag, transport = next(group.tags), group.transport
        self._tensors = (send, receive)
        ranks = list(others(group))
        self._works: list[Waitable] = [
            transport.receive(receive[i], i, group, tag) for i in reversed(ranks) if len(receive[i])
        ]
        self._works += [transport.send(send[i], i, group, tag) for i in ranks if len(send[i])]

    def wait(self) -> None:
        """Return when everything has been received and sent."""
        for work in self._works:
            work.wait()
        self._works = []


def gather_directly(out: Tensor, x: Tensor, group: Group) -> Exchange:
    """Start an all-gather into `out` by direct messages."""
    slices = out.view(group.size, *x.shape)
    own = slices[group.index]
    if own.data_ptr() != x.data_ptr():
        own.copy_(x)
    return Exchange(group, send=[own] * group.size, receive=list(slices))


def combine(parts: Tensor, own: Tensor, index: int, out: Tensor, *, largest: bool = False) -> None:
    """Write the sum (or maximum) of `parts`, one of each rank in their order, into `out`. This rank's part is `own`,
    which may be `out`; `parts[index]` may be overwritten."""
    if len(parts) == 2:
        two: Callable[..., Tensor] = torch.maximum if largest else torch.add
        two(own, parts[1 - index], out=out)
        return
    parts[index].copy_(own)
    if largest:
        torch.amax(parts, 0, out=out)
    else:
        torch.sum(parts, 0, dtype=out.dtype, out=out)


def others(group: Group) -> Iterator[int]:
    """Yield the indices of the other ranks, beginning after this one, so that ranks start with different peers."""
    return ((group.index + step) % group.size for step in range(1, group.size))


def neighbours(group: Group) -> tuple[int, int]:
    """Return the indices of the next and the previous rank."""
    return (group.index + 1) % group.size, (group.index - 1) % group.size


def meet_on_host(rank: int, wanted: Collection[int], seconds: float, *, lends: bool) -> dict[int, Any]:
    """Return the ranks out of `wanted` whose memory this rank may read, by rank. All ranks must call this.

    seconds: timeout of later waits between these ranks. lends: whether this rank takes part.
    """
    if find_spec(_HOST_MEMORY) is None:
        return {}
    found: dict[int, Any] = import_module(f"{_HOST_MEMORY}.same_host").meet(rank, wanted, seconds, lends=lends)
    return found


def transport_of(handle: dist.ProcessGroup, ranks: Sequence[int], index: int, near: dict[int, Any]) -> Transport:
    """Return the transport of a group: host memory if every rank may read all others'. All its ranks must call this."""
    if dist.get_backend(handle) != "gloo":
        return Torch()
    peers = {i: near[r] for i, r in enumerate(ranks) if r in near}
    if find_spec(_HOST_MEMORY) is None:
        return Gloo()
    has_met = torch.tensor(float(len(peers) == len(ranks) - 1))
    dist.all_reduce(has_met, dist.ReduceOp.MIN, group=handle)
    if not has_met:
        return Gloo()
    found: Transport = import_module(f"{_HOST_MEMORY}.transport").HostMemory(peers)
    return found
