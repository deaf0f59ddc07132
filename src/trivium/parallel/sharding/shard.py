"""The part of the optimizer on a rank: slices of buckets with master weights and states, divided by parameter group."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trivium.kernels.dtypes import DTYPES
from trivium.optim.rule import Rule
from trivium.parallel.sharding.buckets import Bucket

Tensor = torch.Tensor


@dataclass(eq=False)
class Part:
    """Elements `where` of a shard, which belong to one group of parameters. The first `decayed` of them have weight
    decay. states: the tensors of the group's rule, by name."""

    group: int
    where: slice
    decayed: int
    states: dict[str, Tensor]


@dataclass(eq=False)
class Shard:
    """This rank's slice of one bucket: master weights, optimizer states by part and, during a step, the gradient in the
    dtype in which it was summed. counted: the elements that this rank counts in the gradient norm."""

    bucket: Bucket
    master: Tensor
    parts: tuple[Part, ...]
    counted: tuple[slice, ...]
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

    def gradient(self) -> Tensor:
        """Return the gradient in the dtype of the masters; it is a copy if that dtype is another."""
        return self.summed().to(self.master.dtype)

    def tensors(self, first: int, count: int) -> dict[str, Tensor]:
        """Return elements [first, first + count) of the master weights and of each state, by name. They must belong to
        one part."""
        part = next(part for part in self.parts if part.where.start <= first < part.where.stop)
        start = first - part.where.start
        states = {name: values[start : start + count] for name, values in part.states.items()}
        return {"master": self.master[first : first + count], **states}


def shard_of(bucket: Bucket, masters: torch.dtype, rules: Sequence[Rule]) -> Shard:
    """Return this rank's slice of a bucket, with states that are zero. Weights that have the masters' dtype are their
    own masters."""
    master = bucket.shard if bucket.shard.dtype == masters else bucket.shard.to(masters)
    parts, first = [], bucket.owned.start
    for span in bucket.spans:
        start, stop = max(span.start - first, 0), min(span.stop - first, len(master))
        if start < stop:
            decayed = min(max(span.start + span.decayed - first - start, 0), stop - start)
            states = {
                state.name: torch.zeros_like(
                    master[start:stop], dtype=masters if state.dtype is None else DTYPES[state.dtype]
                )
                for state in rules[span.group].states
            }
            parts.append(Part(span.group, slice(start, stop), decayed, states))
    return Shard(bucket, master, tuple(parts), _counted(bucket))


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


def narrow(every: Sequence[tuple[Shard, Part]]) -> None:
    """Round the masters of parts to the weights, if these are a copy."""
    copies = [(c, s.master, p.where) for s, p in every if (c := s.copy) is not None]
    if copies:
        torch._foreach_copy_([cut(c, w) for c, _, w in copies], [cut(m, w) for _, m, w in copies])
