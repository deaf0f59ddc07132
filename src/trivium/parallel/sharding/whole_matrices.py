"""Whole matrices for optimizer rules that need them, though ZeRO's slices and tensor ranks cut them.

Directions travel to the rank that works on a parameter, and updates travel back, in two hops each way: among sharers,
whose slices together are a tensor rank's shard, and among tensor ranks, whose shards together are the parameter. Of
what tensor ranks hold alike each works on its own.
"""

from collections.abc import Sequence

import torch

from trivium.comms.collectives import all_to_all_uneven
from trivium.comms.group import Group
from trivium.optim.rule import Rule
from trivium.parallel.sharding.buckets import Bucket
from trivium.plan.layers.part import Parameter
from trivium.plan.matrices import Work

Tensor = torch.Tensor


class WholeMatrices:
    """The exchange among sharers and tensor ranks. Every rank of both calls it alike."""

    def __init__(self, buckets: Sequence[Bucket], tensor: Group) -> None:
        self._slices = [len(bucket.shard) for bucket in buckets]
        self._sharers, self._tensor = [bucket.sharers for bucket in buckets], tensor

    def own(self, work: Work) -> slice:
        """This rank's elements of a parameter, in its slice of the bucket."""
        return slice(*work.within(self._slices[work.bucket], self._sharers[work.bucket].index))

    def updates(self, works: Sequence[Work], directions: Sequence[Tensor], rules: Sequence[Rule]) -> list[Tensor]:
        """Return the updates of this rank's elements from their directions, both flat and one for each parameter."""
        sharers = self._sharers[works[0].bucket]  # those of all the works
        here = [work for work in works if work.sharer == sharers.index]
        every = range(sharers.size)
        sent = [[d for w, d in zip(works, directions, strict=True) if w.sharer == s] for s in every]
        sizes = [[self._size(work, s) for work in here] for s in every]
        like = directions[0]
        arrived = _exchanged(sent, sizes, sharers, like)
        shards = [torch.cat(pieces).view(w.shape) for w, pieces in zip(here, zip(*arrived, strict=True), strict=True)]
        done = self._of_shards(here, shards, rules, like)
        back = [shard.reshape(-1).split([row[n] for row in sizes]) for n, shard in enumerate(done)]
        own = [[self._size(w, sharers.index) for w in works if w.sharer == s] for s in every]
        returned = _exchanged([[pieces[s] for pieces in back] for s in every], own, sharers, like)
        left = [iter(pieces) for pieces in returned]
        return [next(left[work.sharer]) for work in works]

    def _of_shards(
        self, works: Sequence[Work], shards: Sequence[Tensor], rules: Sequence[Rule], like: Tensor
    ) -> list[Tensor]:
        """Return the updates of this tensor rank's shards from their directions."""
        group, index = self._tensor, self._tensor.index
        is_cut = [work.parameter.split is not None and group.size > 1 for work in works]
        cut = [(w, s.reshape(-1)) for w, s, yes in zip(works, shards, is_cut, strict=True) if yes]
        every, here = range(group.size), [work for work, _ in cut if work.tensor == index]
        sent = [[shard for work, shard in cut if work.tensor == t] for t in every]
        arrived = _exchanged(sent, [[w.stop - w.start for w in here]] * group.size, group, like)
        done = [
            _of_parts(work, pieces, rules[work.group])
            for work, pieces in zip(here, zip(*arrived, strict=True), strict=True)
        ]
        own = [[w.stop - w.start for w, _ in cut if w.tensor == t] for t in every]
        returned = _exchanged([[parts[t] for parts in done] for t in every], own, group, like)
        left = [iter(pieces) for pieces in returned]
        return [
            next(left[work.tensor]).view(work.shape) if yes else transformed(work.parameter, shard, rules[work.group])
            for work, shard, yes in zip(works, shards, is_cut, strict=True)
        ]

    def _size(self, work: Work, sharer: int) -> int:
        start, stop = work.within(self._slices[work.bucket], sharer)
        return stop - start


def transformed(parameter: Parameter, whole: Tensor, rule: Rule) -> Tensor:
    """Return the update of a whole parameter from its direction, each of its matrices by itself."""
    if parameter.fused is None:
        return rule.transform(whole)
    done = [rule.transform(matrix) for matrix in parameter.fused.pieces(whole)]
    return torch.cat(parameter.fused.viewed(done), dim=parameter.fused.along).view(whole.shape)


def _of_parts(work: Work, flat: Sequence[Tensor], rule: Rule) -> list[Tensor]:
    """Return the update's part of each tensor rank, flat, from the shards of all. Padding has no update."""
    axis = work.parameter.split
    assert axis is not None, f"{work.parameter.name} is not split"
    size, padded = work.parameter.shape[axis], work.shape[axis] * len(flat)
    whole = torch.cat([part.view(work.shape) for part in flat], dim=axis)
    done = transformed(work.parameter, whole.narrow(axis, 0, size), rule)
    if padded > size:
        rest = whole.narrow(axis, size, padded - size)
        done = torch.cat([done, torch.zeros_like(rest)], dim=axis)
    return [part.reshape(-1) for part in done.split(work.shape[axis], dim=axis)]


def _exchanged(
    sent: Sequence[Sequence[Tensor]], sizes: Sequence[Sequence[int]], group: Group, like: Tensor
) -> list[tuple[Tensor, ...]]:
    """Send several flat tensors to each rank, and return those that come from each, of these sizes."""
    if group.size == 1:
        return [tuple(sent[0])]
    out = [torch.cat(list(several)) if several else like.new_empty(0) for several in sent]
    arrived = [like.new_empty(sum(each)) for each in sizes]
    all_to_all_uneven(out, arrived, group)
    return [tensor.split(list(each)) for tensor, each in zip(arrived, sizes, strict=True)]
