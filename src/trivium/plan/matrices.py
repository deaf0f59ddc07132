"""The rank that updates each whole matrix: the table that the runtime follows and the cost model prices.

ZeRO's slices and tensor ranks cut matrices. A rule whose unit is a matrix gets whole ones: each parameter has one rank
that works on it, among all that share it. They are given out so that all ranks compute about as much.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from trivium.optim.rule import Rule
from trivium.plan.buckets import BucketRow, slices_of
from trivium.plan.layers.part import Parameter
from trivium.plan.parameters import local_shape
from trivium.plan.plan import Plan


class Work(NamedTuple):
    """A parameter, and the rank that updates its matrices, by its numbers among sharers and tensor ranks.

    parameter: as expert ranks divide it. bucket: its number among the trained ones. [start, stop): its elements there.
    shape: of a tensor rank's shard.
    """

    parameter: Parameter
    group: int
    bucket: int
    start: int
    stop: int
    shape: tuple[int, ...]
    sharer: int
    tensor: int

    def within(self, slice_elements: int, sharer: int) -> tuple[int, int]:
        """The elements that lie in a sharer's slice of the bucket, counted from the slice's start."""
        first = sharer * slice_elements
        start, stop = max(self.start - first, 0), min(self.stop - first, slice_elements)
        return start, max(start, stop)


def rounds_of_work(plan: Plan, rows: Sequence[BucketRow]) -> list[list[Work]]:
    """The matrices of a pipeline rank's trained buckets, in rounds in which every rank works on one parameter at most.
    The buckets of a round have the same sharers.

    Without ZeRO every replica computes all updates, so that only its tensor ranks share them.
    """
    trained = [row for row in rows if row.trains]
    rules = [group.made({}) for group in plan.optimizer.every]
    works = [work for work in _parameters(plan, trained) if rules[work.group].unit == "matrix"]
    kinds: dict[bool, list[tuple[float, Work]]] = {}
    for work in works:
        flops = update_flops(rules[work.group], work.parameter)
        kinds.setdefault(trained[work.bucket].by_expert, []).append((flops, work))
    return [
        round_of_work
        for found in kinds.values()
        for round_of_work in _rounds(found, slices_of(plan, trained[found[0][1].bucket]), plan.layout.tensor)
    ]


def _rounds(found: Sequence[tuple[float, Work]], sharers: int, tensor: int) -> list[list[Work]]:
    """Give out works, with the operations of each, to sharers and tensor ranks."""
    done = [0.0] * (sharers * tensor)
    rounds: list[list[Work]] = []
    taken = [0] * len(done)
    for flops, work in sorted(found, key=lambda each: -each[0]):
        rank = min(range(len(done)), key=done.__getitem__)
        if taken[rank] == len(rounds):
            rounds.append([])
        rounds[taken[rank]].append(work._replace(sharer=rank // tensor, tensor=rank % tensor))
        taken[rank] += 1
        done[rank] += flops
    return rounds


def matrix_shapes(parameter: Parameter) -> list[tuple[int, int]]:
    """Rows and columns of each matrix of a parameter."""
    *leading, columns = parameter.shape
    rows, fused = prod(leading), parameter.fused
    if fused is None:
        return [(rows, columns)]
    return [(rows // sum(fused.sizes) * size, columns) for size in fused.sizes]


def update_flops(rule: Rule, parameter: Parameter) -> float:
    """Return the floating-point operations with which a rule updates the matrices of a parameter."""
    return sum(rule.flops(rows, columns) for rows, columns in matrix_shapes(parameter))


def _parameters(plan: Plan, rows: Sequence[BucketRow]) -> Iterator[Work]:
    if not plan.optimizer.groups:
        return
    for number, row in enumerate(rows):
        start = 0
        for item in row.items:
            p, stop = item.parameter, start + item.elements
            if len(p.shape) >= 2:
                shape, group = local_shape(p, plan.model, plan.layout), plan.optimizer.number_of(p.name)
                yield Work(p.of_expert_rank(plan.layout.expert), group, number, start, stop, shape, 0, 0)
            start += item.room
