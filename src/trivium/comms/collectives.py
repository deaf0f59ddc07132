"""The collectives. Each docstring names what happens forward and backward; every one counts its bytes.

Activations are [positions, sequences, hidden], so a split along the sequence is a split of dimension 0 and
every message is contiguous.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from trivium.comms.exchange import Combination, Exchange, begin_receive, begin_send, combine
from trivium.comms.host_memory.loans import INLINE_BYTES
from trivium.comms.mesh import Group, Mesh, Waitable

Tensor = torch.Tensor

# From this size on, ranks of a gloo group exchange their slices directly: gloo's own collectives copy what is sent
# and what arrives, which then costs more than their worker threads save.
DIRECT_BYTES = 8 << 20


def all_reduce_(x: Tensor, group: Group, *, largest: bool = False) -> Tensor:
    """Sum (or take the largest) over the group, in place, outside autograd."""
    all_reduce_begin(x, group, largest=largest).wait()
    return x


def all_reduce_begin(x: Tensor, group: Group, *, largest: bool = False) -> "PendingResult":
    """Start a sum (or maximum) over the group, in place; `x` must not be touched until it was waited for."""
    if group.handle is None:
        return PendingResult(None, x)
    group.count("all_reduce", x)
    if group.by_memory:
        return _all_reduce_by_memory(x, group, largest=largest)
    operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
    return PendingResult(dist.all_reduce(x, operation, group=group.handle, async_op=True), x, group=group)


def _all_reduce_by_memory(x: Tensor, group: Group, *, largest: bool) -> "PendingResult":
    """Each rank combines a slice, which the others then read from it; of what is small, everything."""
    if x.nbytes <= INLINE_BYTES:
        return PendingResult(Combination(group, [x] * group.size, x, largest=largest), x, group=group)
    slices = list(x.view(-1).tensor_split(group.size))
    own = slices[group.index]

    def gather() -> None:
        group.wait_for(Exchange(group, send=[own] * group.size, receive=slices))

    return PendingResult(Combination(group, slices, own, largest=largest), x, gather, group)


def sum_over_ranks_(x: Tensor, mesh: Mesh) -> Tensor:
    """Sum over all ranks of the mesh, in place: one message per axis."""
    return sum_over_ranks_begin(x, mesh).wait()


def sum_over_ranks_begin(x: Tensor, mesh: Mesh) -> "PendingResult":
    """Start a sum over all ranks, in place: over one axis now, over the others when it is waited for."""
    groups = [g for g in (mesh.replicas, mesh.tensor, mesh.pipeline) if g.size > 1]
    if not groups:
        return PendingResult(None, x)
    return PendingResult(all_reduce_begin(x, groups[0]), x, lambda: [all_reduce_(x, group) for group in groups[1:]])


def all_gather(x: Tensor, group: Group) -> Tensor:
    """The group's tensors one after another along dimension 0, outside autograd."""
    if group.handle is None:
        return x
    out = x.new_empty((x.shape[0] * group.size, *x.shape[1:]))
    all_gather_into(out, x, group)
    return out


def all_gather_begin(x: Tensor, group: Group) -> "PendingResult":
    """Start the same; `x` must not change until it was waited for."""
    if group.handle is None:
        return PendingResult(None, x)
    out = x.new_empty((x.shape[0] * group.size, *x.shape[1:]))
    return PendingResult(all_gather_into(out, x, group, wait=False), out, group=group)


def all_gather_into(out: Tensor, x: Tensor, group: Group, *, wait: bool = True) -> Waitable | None:
    """Like `all_gather`, into a given contiguous tensor; without `wait` returns the work to wait for.

    x may be this rank's own slice of `out`.
    """
    if group.handle is None:
        if out.data_ptr() != x.data_ptr():
            out.copy_(x)
        return None
    group.count("all_gather", x)
    work: Waitable
    if _directly(out, group):
        own = out.view(group.size, *x.shape)[group.index]
        if own.data_ptr() != x.data_ptr():
            own.copy_(x)
        work = Exchange(group, send=[own] * group.size, receive=list(out.view(group.size, *x.shape)))
    else:
        if group.is_gloo and x.data_ptr() == out.data_ptr() + group.index * x.numel() * x.element_size():
            x = x.clone()  # NCCL gathers in place
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        work = gather(out, x.contiguous(), group=group.handle, async_op=True)
    if wait:
        group.wait_for(work)
        return None
    return work


def reduce_scatter(x: Tensor, group: Group) -> Tensor:
    """Sum over the group of this rank's slice of dimension 0, outside autograd."""
    return reduce_scatter_begin(x, group).wait()


class PendingResult:
    """Communication under way; `wait` finishes it and returns its result."""

    def __init__(
        self,
        work: Waitable | None,
        result: Tensor,
        complete: Callable[[], object] | None = None,
        group: Group | None = None,
    ) -> None:
        """group: whose time of waiting is counted."""
        self._work, self._result, self._complete, self._group = work, result, complete, group

    def wait(self) -> Tensor:
        """Finish and return the result."""
        if self._work is not None and self._group is not None:
            self._group.wait_for(self._work)
        elif self._work is not None:
            self._work.wait()
        if self._complete is not None:
            self._complete()
        self._work = self._complete = None
        return self._result


def reduce_scatter_begin(x: Tensor, group: Group) -> PendingResult:
    """Start a reduce-scatter of dimension 0; `x` must not change until it was waited for."""
    if group.handle is None:
        return PendingResult(None, x)
    group.count("reduce_scatter", x)
    x = x.contiguous()
    shape = (x.shape[0] // group.size, *x.shape[1:])
    out, slices = x.new_empty(shape), list(x.view(group.size, *shape))
    if group.by_memory:
        return PendingResult(Combination(group, slices, out), out, group=group)
    if group.is_gloo:
        # gloo's own reduce_scatter is slower than all_reduce; exchanging slices and adding them here is faster.
        parts = x.new_empty((group.size, *shape))
        if _directly(x, group):
            exchange = Exchange(group, send=slices, receive=list(parts))
            add_up = partial(combine, parts, slices[group.index], group.index, out)
            return PendingResult(exchange, out, add_up, group)
        work = dist.all_to_all_single(parts.view(x.shape), x, group=group.handle, async_op=True)
        return PendingResult(work, out, lambda: torch.sum(parts, 0, out=out), group)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return PendingResult(scatter(out, x, group=group.handle, async_op=True), out, group=group)


def _directly(whole: Tensor, group: Group) -> bool:
    return group.by_memory or (group.is_gloo and whole.numel() * whole.element_size() >= DIRECT_BYTES)


def all_to_all(parts: Tensor, group: Group) -> Tensor:
    """parts[i] to rank i; returns what each sent here, [ranks, ...], outside autograd."""
    if group.handle is None:
        return parts
    group.count("all_to_all", parts)
    out, parts = torch.empty_like(parts, memory_format=torch.contiguous_format), parts.contiguous()
    if group.by_memory:
        out[group.index].copy_(parts[group.index])
        group.wait_for(Exchange(group, send=list(parts), receive=list(out)))
    else:
        group.wait_for(dist.all_to_all_single(out, parts, group=group.handle, async_op=True))
    return out


def all_to_all_uneven(send: Sequence[Tensor], receive: Sequence[Tensor], group: Group) -> None:
    """send[i] to rank i, and what it sends here into receive[i], outside autograd. All are contiguous, and both sides
    of each message know its size, which may be 0."""
    if group.handle is None:
        return
    for tensor in send:
        group.count("all_to_all", tensor)
    if group.is_gloo:
        receive[group.index].copy_(send[group.index])
        group.wait_for(Exchange(group, send=send, receive=receive))
    else:
        group.wait_for(dist.all_to_all(list(receive), list(send), group=group.handle, async_op=True))


def rotate(tensors: tuple[Tensor, ...], group: Group) -> tuple[Tensor, ...]:
    """Every rank's tensors to the next rank of the group; returns the previous one's."""
    return rotate_begin(tensors, group)()


def rotate_begin(tensors: tuple[Tensor, ...], group: Group, tag: int = 0) -> Callable[[], tuple[Tensor, ...]]:
    """Start the same; what is returned waits, and gives the result. The tensors must not change until then.

    tag: of the first tensor, the others' follow; tags of their own keep apart what is under way together.
    """
    if group.handle is None:
        return lambda: tensors
    following, previous = ((group.index + step) % group.size for step in (1, -1))
    sent = [t.contiguous() for t in tensors]
    received = [torch.empty_like(t) for t in sent]
    for out in sent:
        group.count("send", out)
    if group.by_memory or group.is_gloo:
        loans: list[Waitable] = [begin_send(x, following, group, n) for n, x in enumerate(sent, tag)]
        receipts = [begin_receive(x, previous, group, n) for n, x in enumerate(received, tag)]
        return _when_done([*receipts, *loans], received, group)
    operations = []
    for n, (out, back) in enumerate(zip(sent, received, strict=True), tag):
        operations.append(dist.P2POp(dist.isend, out, group.ranks[following], group.handle, n))
        operations.append(dist.P2POp(dist.irecv, back, group.ranks[previous], group.handle, n))
    return _when_done(dist.batch_isend_irecv(operations), received, group)


def _when_done(works: Sequence[Waitable], received: Sequence[Tensor], group: Group) -> Callable[[], tuple[Tensor, ...]]:
    def wait() -> tuple[Tensor, ...]:
        for work in works:
            group.wait_for(work)
        return tuple(received)

    return wait


class _SumOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return all_reduce_(x.clone(memory_format=torch.contiguous_format), group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return all_gather(grads[0].contiguous(), ctx.group), None


def sum_over(x: Tensor, group: Group) -> Tensor:
    """Forward: all-reduce. Backward: identity. Leaves a row-split region."""
    return x if group.handle is None else _SumOver.apply(x, group)


def scatter_sequence(x: Tensor, group: Group) -> Tensor:
    """Forward: reduce-scatter of positions. Backward: all-gather. Leaves a region under sequence parallelism."""
    return x if group.handle is None else _ScatterSequence.apply(x, group)
