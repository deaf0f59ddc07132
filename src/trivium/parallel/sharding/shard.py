"""The part of the optimizer on a rank: slices of buckets with master weights and states, divided by parameter group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from trivium.kernels.dtypes import DTYPES
from trivium.kernels.host import on_host
from trivium.optim.rule import Rule
from trivium.parallel.sharding.buckets import Bucket
from trivium.plan.offload import PIECE_ELEMENTS

Tensor = torch.Tensor


@dataclass(eq=False)
class Part:
    """Elements `where` of a shard, which belong to one group of parameters. The first `decayed` of them have weight
    decay. states: the tensors of the group's rule, by name."""

    group: int
    where: slice
    decayed: int
    states: dict[str, Tensor]

    def pieces(self) -> Iterator["Part"]:
        """Yield parts of at most PIECE_ELEMENTS elements. All elements of one have weight decay, or none."""
        first, size = self.where.start, self.where.stop - self.where.start
        for begin, end in ((0, self.decayed), (self.decayed, size)):
            for start in range(begin, end, PIECE_ELEMENTS):
                stop = min(start + PIECE_ELEMENTS, end)
                states = {name: values[start:stop] for name, values in self.states.items()}
                yield Part(self.group, slice(first + start, first + stop), max(0, self.decayed - start), states)


class Updated(NamedTuple):
    """Elements [n] that one rule updates: as in `Part`, on the device. copy: the weights, if they are a copy of the
    masters in a narrower dtype."""

    group: int
    master: Tensor
    states: dict[str, Tensor]
    gradient: Tensor
    decayed: int
    copy: Tensor | None

    @property
    def kept_away(self) -> list[Tensor]:
        """The tensors of an offloaded shard that are on the host: the states, and separate masters."""
        return [*self.states.values(), *([] if self.copy is None else [self.master])]

    def brought(self, here: Sequence[Tensor]) -> "Updated":
        """Return the same with copies of `kept_away` on the device."""
        states = dict(zip(self.states, here, strict=False))
        return self._replace(states=states, master=self.master if self.copy is None else here[-1])


@dataclass(eq=False)
class Shard:
    """This rank's slice of one bucket: master weights, optimizer states by part and, during a step, the gradient in the
    dtype in which it was summed. counted: the elements that this rank counts in the gradient norm. is_on_host: masters,
    if they are separate, and states are in the memory of the host."""

    bucket: Bucket
    master: Tensor
    parts: tuple[Part, ...]
    counted: tuple[slice, ...]
    is_on_host: bool = False
    grad: Tensor | None = None

    def summed(self) -> Tensor:
        """Return the gradient in the dtype in which it was summed."""
        assert self.grad is not None, "gradients are reduced first"
        return self.grad

    @property
    def copy(self) -> Tensor | None:
        """Return the weights if they are a copy of the masters in a narrower dtype, and otherwise None."""
        own = self.bucket.shard.data_ptr() != self.master.data_ptr()
        return self.bucket.shard if own else None

    @property
    def state(self) -> list[Tensor]:
        """Return the optimizer state: the masters, if they are separate from the weights, and all states."""
        masters = [] if self.copy is None else [self.master]
        return masters + [values for part in self.parts for values in part.states.values()]

    def gradient(self) -> Tensor:
        """Return the gradient in the dtype of the masters; it is a copy if that dtype is another."""
        return self.summed().to(self.master.dtype)

    def updated(self, part: Part) -> Updated:
        """Return the elements of a part for their update."""
        where, copy = part.where, self.copy
        narrow = None if copy is None else cut(copy, where)
        return Updated(
            part.group, cut(self.master, where), part.states, cut(self.summed(), where), part.decayed, narrow
        )

    def tensors(self, first: int, count: int) -> dict[str, Tensor]:
        """Return elements [first, first + count) of the master weights and of each state, by name. They must belong to
        one part."""
        part = next(part for part in self.parts if part.where.start <= first < part.where.stop)
        start = first - part.where.start
        states = {name: values[start : start + count] for name, values in part.states.items()}
        return {"master": self.master[first : first + count], **states}


def shard_of(bucket: Bucket, masters: torch.dtype, rules: Sequence[Rule], *, is_on_host: bool = False) -> Shard:
    """Return this rank's slice of a bucket, with states that are zero. Weights that have the masters' dtype are their
    own masters, and stay on the device."""
    device = bucket.shard.device

    def empty(size: int, dtype: torch.dtype) -> Tensor:
        return on_host((size,), dtype, device) if is_on_host else torch.empty(size, dtype=dtype, device=device)

    master = bucket.shard
    if master.dtype != masters:
        master = empty(len(bucket.shard), masters).copy_(bucket.shard)
    parts, first = [], bucket.owned.start
    for span in bucket.spans:
        start, stop = max(span.start - first, 0), min(span.stop - first, len(master))
        if start < stop:
            decayed = min(max(span.start + span.decayed - first - start, 0), stop - start)
            states = {
                state.name: empty(stop - start, masters if state.dtype is None else DTYPES[state.dtype]).zero_()
                for state in rules[span.group].states
            }
            parts.append(Part(span.group, slice(start, stop), decayed, states))
    return Shard(bucket, master, tuple(parts), _counted(bucket), is_on_host)


def _counted(bucket: Bucket) -> tuple[slice, ...]:
    """Return the elements of this rank's slice that it counts in the norm; adjacent runs are joined."""
    found: list[slice] = []
    first, size = bucket.owned.start, len(bucket.shard)
    for slot in bucket.slots:
        start, stop = max(0, slot.start - first), min(size, slot.stop - first)
        if not slot.counts or start >= stop:
            continue
        if found and found[-1].stop == start:
            start = found.pop().start
        found.append(slice(start, stop))
    return tuple(found)


def cut(values: Tensor, where: slice) -> Tensor:
    """Return a part of a shard's tensor; the tensor itself where the part is all of it."""
    return values if where.stop - where.start == len(values) else values[where]


def narrow(every: Sequence[Updated]) -> None:
    """Round masters to the weights, if these are a copy."""
    copies = [(each.copy, each.master) for each in every if each.copy is not None]
    if copies:
        torch._foreach_copy_([copy for copy, _ in copies], [master for _, master in copies])
