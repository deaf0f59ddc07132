"""The collectives. Each docstring names what happens forward and backward; every one counts its bytes.

Activations are [positions, sequences, hidden], so a split along the sequence is a split of dimension 0 and
every message is contiguous.
"""

from typing import Any, Protocol

import torch
import torch.distributed as dist

from trivium.parallel.mesh import Group, Mesh
from trivium.plan.layout import AXES

Tensor = torch.Tensor


class Pending(Protocol):
    """Communication under way."""

    def wait(self) -> object:
        """Return when it is done."""


def all_reduce_(x: Tensor, group: Group, *, largest: bool = False) -> Tensor:
    """Sum (or take the largest) over the group, in place, outside autograd."""
    if group.handle is not None:
        group.count("all_reduce", x)
        dist.all_reduce(x, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=group.handle)
    return x


def all_reduce_begin(x: Tensor, group: Group) -> "PendingSlice":
    """Start a sum over the group, in place; `x` must not be touched until it was waited for."""
    if group.handle is None:
        return PendingSlice(None, x, summed=True)
    group.count("all_reduce", x)
    return PendingSlice(dist.all_reduce(x, group=group.handle, async_op=True), x, summed=True)


def all_gather(x: Tensor, group: Group) -> Tensor:
    """The group's tensors one after another along dimension 0, outside autograd."""
    if group.handle is None:
        return x
    out = x.new_empty((x.shape[0] * group.size, *x.shape[1:]))
    all_gather_into(out, x, group)
    return out


def all_gather_into(out: Tensor, x: Tensor, group: Group, *, wait: bool = True) -> Pending | None:
    """Like `all_gather`, into a given contiguous tensor; without `wait` returns the work to wait for.

    x may be this rank's own slice of `out`.
    """
    if group.handle is None:
        if out.data_ptr() != x.data_ptr():
            out.copy_(x)
        return None
    group.count("all_gather", x)
    if x.data_ptr() == out.data_ptr() + group.index * x.numel() * x.element_size():
        x = x.clone()
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    work = gather(out, x.contiguous(), group=group.handle, async_op=True)
    if wait:
        work.wait()
        return None
    return work


def reduce_scatter(x: Tensor, group: Group) -> Tensor:
    """Sum over the group of this rank's slice of dimension 0, outside autograd."""
    if group.handle is None:
        return x
    return reduce_scatter_begin(x, group).wait()


class PendingSlice:
    """A reduce-scatter under way; `wait` returns this rank's summed slice."""

    def __init__(self, work: Pending | None, parts: Tensor, *, summed: bool) -> None:
        self._work, self._parts, self._summed = work, parts, summed

    def wait(self) -> Tensor:
        """Finish and return the slice."""
        if self._work is not None:
            self._work.wait()
        return self._parts if self._summed else self._parts.sum(0)


def reduce_scatter_begin(x: Tensor, group: Group) -> PendingSlice:
    """Start a reduce-scatter of dimension 0; `x` must not change until it was waited for."""
    if group.handle is None:
        return PendingSlice(None, x, summed=True)
    group.count("reduce_scatter", x)
    x = x.contiguous()
    shape = (x.shape[0] // group.size, *x.shape[1:])
    if group.is_gloo:
        # gloo's own reduce_scatter is slower than all_reduce; exchanging slices and adding them here is faster.
        parts = x.new_empty((group.size, *shape))
        work = dist.all_to_all_single(parts.view(x.shape), x, group=group.handle, async_op=True)
        return PendingSlice(work, parts, summed=False)
    out = x.new_empty(shape)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return PendingSlice(scatter(out, x, group=group.handle, async_op=True), out, summed=True)


def all_to_all(parts: Tensor, group: Group) -> Tensor:
    """parts[i] to rank i; returns what each sent here, [ranks, ...], outside autograd."""
    if group.handle is None:
        return parts
    group.count("all_to_all", parts)
    out, parts = torch.empty_like(parts, memory_format=torch.contiguous_format), parts.contiguous()
    dist.all_to_all_single(out, parts, group=group.handle)
    return out


def rotate(tensors: tuple[Tensor, ...], group: Group) -> tuple[Tensor, ...]:
    """Every rank's tensors to the next rank of the group; returns the previous one's."""
    if group.handle is None:
        return tensors
    following, previous = (group.ranks[(group.index + step) % group.size] for step in (1, -1))
    sent = [t.contiguous() for t in tensors]
    received = [torch.empty_like(t) for t in sent]
    operations = []
    for tag, (out, back) in enumerate(zip(sent, received, strict=True)):
        group.count("send", out)
        operations.append(dist.P2POp(dist.isend, out, following, group.handle, tag))
        operations.append(dist.P2POp(dist.irecv, back, previous, group.handle, tag))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return tuple(received)


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # Not in place: autograd may hand the same gradient tensor to other branches.
        return all_reduce_(grads[0].clone(memory_format=torch.contiguous_format), ctx.group), None


class _SumOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return all_reduce_(x.clone(memory_format=torch.contiguous_format), group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return reduce_scatter(grads[0], ctx.group), None


class _ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return all_gather(grads[0].contiguous(), ctx.group), None


def copy_to(x: Tensor, group: Group) -> Tensor:
    """Forward: identity. Backward: all-reduce. Enters a column-split region."""
    return x if group.handle is None else _CopyTo.apply(x, group)


def sum_over(x: Tensor, group: Group) -> Tensor:
    """Forward: all-reduce. Backward: identity. Leaves a row-split region."""
    return x if group.handle is None else _SumOver.apply(x, group)


def gather_sequence(x: Tensor, group: Group) -> Tensor:
    """Forward: all-gather of positions. Backward: reduce-scatter. Enters a region under sequence parallelism."""
    return x if group.handle is None else _GatherSequence.apply(x, group)


def scatter_sequence(x: Tensor, group: Group) -> Tensor:
    """Forward: reduce-scatter of positions. Backward: all-gather. Leaves a region under sequence parallelism."""
    return x if group.handle is None else _ScatterSequence.apply(x, group)


def count_over_all(flag: bool, mesh: Mesh) -> int:
    """How many ranks of the mesh say yes; every rank must ask."""
    total = torch.tensor(float(flag), device=mesh.device)
    for axis in AXES:
        all_reduce_(total, mesh.group(axis))
    return round(float(total))
