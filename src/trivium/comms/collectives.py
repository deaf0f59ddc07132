"""The collectives. Each docstring says what happens in forward and backward; each function counts its bytes.

Activations are [positions, sequences, hidden], so a split along the sequence is a split of dimension 0 and
every message is contiguous.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trivium.comms.group import Group, PendingResult, Waitable
from trivium.comms.mesh import Mesh

Tensor = torch.Tensor


def all_reduce_(x: Tensor, group: Group, *, largest: bool = False) -> Tensor:
    """Sum (or take the largest) over the group, in place, outside autograd."""
    all_reduce_begin(x, group, largest=largest).wait()
    return x


def all_reduce_begin(x: Tensor, group: Group, *, largest: bool = False) -> PendingResult:
    """Start a sum (or maximum) over the group, in place; do not read or write `x` before `wait()` has returned."""
    if group.handle is None:
        return PendingResult(None, x)
    group.count("all_reduce", x)
    return group.transport.all_reduce(x, group, largest=largest)


def sum_over_ranks_(x: Tensor, mesh: Mesh) -> Tensor:
    """Sum over all ranks of the mesh, in place: one message per axis."""
    return sum_over_ranks_begin(x, mesh).wait()


def sum_over_ranks_begin(x: Tensor, mesh: Mesh) -> PendingResult:
    """Start a sum over all ranks, in place: over one axis now, over the others in `wait()`."""
    groups = [g for g in (mesh.replicas, mesh.tensor, mesh.pipeline) if g.size > 1]
    if not groups:
        return PendingResult(None, x)
    return PendingResult(all_reduce_begin(x, groups[0]), x, lambda: [all_reduce_(x, group) for group in groups[1:]])


def all_gather(x: Tensor, group: Group) -> Tensor:
    """Concatenate the tensors of the group's ranks along dimension 0, outside autograd."""
    if group.handle is None:
        return x
    out = x.new_empty((x.shape[0] * group.size, *x.shape[1:]))
    all_gather_into(out, x, group)
    return out


def all_gather_begin(x: Tensor, group: Group) -> PendingResult:
    """Start an all-gather along dimension 0; do not modify `x` before `wait()` has returned."""
    if group.handle is None:
        return PendingResult(None, x)
    out = x.new_empty((x.shape[0] * group.size, *x.shape[1:]))
    return PendingResult(all_gather_into(out, x, group, wait=False), out, group=group)


def all_gather_into(out: Tensor, x: Tensor, group: Group, *, wait: bool = True) -> Waitable | None:
    """Like `all_gather`, into a given contiguous tensor. With `wait=False`, return the work to wait for.

    x may be this rank's own slice of `out`.
    """
    if group.handle is None:
        if out.data_ptr() != x.data_ptr():
            out.copy_(x)
        return None
    group.count("all_gather", x)
    work = group.transport.all_gather(out, x, group)
    if wait:
        group.wait_for(work)
        return None
    return work


def reduce_scatter(x: Tensor, group: Group) -> Tensor:
    """Sum over the group and return this rank's slice of dimension 0, outside autograd."""
    return reduce_scatter_begin(x, group).wait()


def reduce_scatter_begin(x: Tensor, group: Group) -> PendingResult:
    """Start a reduce-scatter along dimension 0; do not modify `x` before `wait()` has returned."""
    if group.handle is None:
        return PendingResult(None, x)
    group.count("reduce_scatter", x)
    return group.transport.reduce_scatter(x.contiguous(), group)


def all_to_all(parts: Tensor, group: Group) -> Tensor:
    """Send parts[i] to rank i; return what each rank sent to this one, [ranks, ...], outside autograd."""
    if group.handle is None:
        return parts
    group.count("all_to_all", parts)
    out, parts = torch.empty_like(parts, memory_format=torch.contiguous_format), parts.contiguous()
    group.wait_for(group.transport.all_to_all(out, parts, group))
    return out


def all_to_all_uneven(send: Sequence[Tensor], receive: Sequence[Tensor], group: Group) -> None:
    """Send send[i] to rank i and receive from it into receive[i], outside autograd. All tensors are contiguous. Both
    sides of a message know its size, which may be 0."""
    if group.handle is None:
        return
    for tensor in send:
        group.count("all_to_all", tensor)
    group.wait_for(group.transport.all_to_all_uneven(send, receive, group))


def all_to_all_rows_begin(x: Tensor, send: Sequence[int], receive: Sequence[int], group: Group) -> PendingResult:
    """Start to send consecutive rows of x to the ranks of the group, and to receive rows into one tensor, both in the
    order of the ranks, outside autograd; do not modify `x` before `wait()` has returned.

    send, receive: the number of rows for each rank, and from it.
    """
    if group.handle is None:
        return PendingResult(None, x)
    x, out = x.contiguous(), x.new_empty((sum(receive), *x.shape[1:]))
    group.count("all_to_all", x)
    work = group.transport.all_to_all_uneven(x.split(list(send)), out.split(list(receive)), group)
    return PendingResult(work, out, group=group)


def rotate(tensors: tuple[Tensor, ...], group: Group) -> tuple[Tensor, ...]:
    """Send tensors to the next rank of the group, and return those of the previous rank."""
    return rotate_begin(tensors, group)()


def rotate_begin(
    tensors: tuple[Tensor, ...], group: Group, tag: int = 0, into: tuple[Tensor, ...] | None = None
) -> Callable[[], tuple[Tensor, ...]]:
    """Start a rotation. The returned function waits and returns the result; do not modify the tensors before that.

    tag: of the first tensor; the others have the following tags. Concurrent rotations need distinct tags.
    into: contiguous tensors that receive the result; by default new ones.
    """
    if group.handle is None:
        return lambda: tensors
    sent = [t.contiguous() for t in tensors]
    received = [torch.empty_like(t) for t in sent] if into is None else list(into)
    for out in sent:
        group.count("send", out)
    works = group.transport.rotate(sent, received, group, tag)

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


class _EnterWhole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return all_reduce_(grads[0].clone(memory_format=torch.contiguous_format), ctx.group), None


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return reduce_scatter(grads[0].contiguous(), ctx.group), None


def enter_whole(x: Tensor, group: Group) -> Tensor:
    """Forward: identity. Backward: all-reduce. Enters a tensor region with the whole sequence."""
    return x if group.handle is None else _EnterWhole.apply(x, group)


def gather_sequence(x: Tensor, group: Group) -> Tensor:
    """Forward: all-gather of positions. Backward: reduce-scatter. Enters a region under sequence parallelism."""
    return x if group.handle is None else _GatherSequence.apply(x, group)


def sum_over(x: Tensor, group: Group) -> Tensor:
    """Forward: all-reduce. Backward: identity. Leaves a row-split region."""
    return x if group.handle is None else _SumOver.apply(x, group)


def scatter_sequence(x: Tensor, group: Group) -> Tensor:
    """Forward: reduce-scatter of positions. Backward: all-gather. Leaves a region under sequence parallelism."""
    return x if group.handle is None else _ScatterSequence.apply(x, group)
