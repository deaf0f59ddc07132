"""Layout of ranks on the axes of parallelism. Pure data, without torch."""

import itertools
from math import isqrt
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from trivium.config import Config, Short
from trivium.plan.constraints import divides_replicas, has_chunks
from trivium.plan.sizes import MAX_PLAN_RANKS, Degree

Axis = Literal["pipeline", "data", "context", "tensor"]

AXES: tuple[Axis, ...] = ("pipeline", "data", "context", "tensor")


class Coordinate(NamedTuple):
    """A rank's position on each axis."""

    pipeline: int
    data: int
    tensor: int
    context: int = 0


class Layout(Config):
    """Degrees of parallelism.

    order: slowest axis first. By default tensor varies fastest, so tensor groups are consecutive ranks and
    stay inside a node, data peers are near, and pipeline neighbours are the furthest apart (MT-NLG, section
    2: traffic per unit of time is tensor > data > pipeline).
    """

    tensor: Annotated[Degree, Short("tp")] = 1  # tensor parallelism: ranks that split each layer
    pipeline: Annotated[Degree, Short("pp")] = 1  # pipeline parallelism: ranks that hold consecutive layers
    data: Annotated[Degree, Short("dp")] = (
        1  # data parallelism: ranks that hold the same layers and read different samples
    )
    context: Annotated[Degree, Short("cp")] = 1  # context parallelism: ranks that split each sequence
    chunks: Degree = 1  # stages of each pipeline rank (virtual stages)
    order: tuple[Axis, ...] = AXES  # axes in the order of ranks, slowest first; ranks along the last one are neighbours
    shards: Annotated[int, Field(ge=2, le=MAX_PLAN_RANKS)] | None = (
        None  # number of neighbouring replicas over which ZeRO shards; null: all
    )
    # expert parallelism: neighbouring replicas that divide the experts of each layer; the number of ranks stays
    expert: Annotated[Degree, Short("ep")] = 1

    @property
    def world_size(self) -> int:
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights: over these, gradients are summed."""
        return self.data * self.context

    @property
    def sharers(self) -> int:
        """Replicas that share one copy of what ZeRO shards."""
        return self.shards or self.replicas

    @property
    def copies(self) -> int:
        """Number of copies of the state that ZeRO shards."""
        return self.replicas // self.sharers

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts: over these, their gradients are summed."""
        return self.replicas // self.expert

    @property
    def expert_sharers(self) -> int:
        """Ranks with the same experts that share one copy of what ZeRO shards."""
        return self.sharers // self.expert

    @property
    def stages(self) -> int:
        """Number of stages of the whole model."""
        return self.pipeline * self.chunks

    def degree(self, axis: Axis) -> int:
        """Return the number of ranks along an axis."""
        return int(getattr(self, axis))

    def coordinate(self, rank: int) -> Coordinate:
        """Return the position of `rank`."""
        at: dict[str, int] = dict.fromkeys(AXES, 0)
        for axis in reversed(self.order):
            rank, at[axis] = divmod(rank, self.degree(axis))
        return Coordinate(**at)

    def rank(self, at: Coordinate) -> int:
        """Return the rank at a position; the inverse of `coordinate`."""
        number = 0
        for axis in self.order:
            number = number * self.degree(axis) + getattr(at, axis)
        return number

    def peers(self, rank: int, *axes: Axis) -> tuple[int, ...]:
        """Ranks that differ from `rank` only along `axes`, by their index on these, the first varying slowest."""
        here = self.coordinate(rank)
        indices = itertools.product(*(range(self.degree(a)) for a in axes))
        return tuple(self.rank(here._replace(**dict(zip(axes, i, strict=True)))) for i in indices)

    def peer_sets(self, *axes: Axis) -> list[tuple[int, ...]]:
        """The sets of peers along `axes` that all ranks form together, by their lowest ranks."""
        places = ((rank, self.coordinate(rank)) for rank in range(self.world_size))
        firsts = [rank for rank, at in places if not any(getattr(at, axis) for axis in axes)]
        return [self.peers(rank, *axes) for rank in firsts]

    @property
    def replica_axes(self) -> tuple[Axis, ...]:
        """The axes along which ranks hold the same weights, the slowest first: by these, peers ascend."""
        return tuple(axis for axis in self.order if axis in ("data", "context"))

    def replica(self, number: int) -> int:
        """The rank of a replica of rank 0, by its number among them, ascending."""
        at: dict[str, int] = {}
        for axis in reversed(self.replica_axes):
            number, at[axis] = divmod(number, self.degree(axis))
        return self.rank(Coordinate(0, 0, 0)._replace(**at))

    def sharer(self, at: Coordinate) -> int:
        """The number of a rank among those that share its copy of what ZeRO shards."""
        return self._replica_number(at) % self.sharers

    def expert_rank(self, at: Coordinate) -> int:
        """The number of a rank among those that divide the experts of a layer."""
        return self._replica_number(at) % self.expert

    def expert_sharer(self, at: Coordinate) -> int:
        """The number of a rank among those with the same experts that share its copy of what ZeRO shards."""
        return self.sharer(at) // self.expert

    def _replica_number(self, at: Coordinate) -> int:
        """The number of a rank among its replicas, ascending: the inverse of `replica`."""
        number = 0
        for axis in self.replica_axes:
            number = number * self.degree(axis) + getattr(at, axis)
        return number

    def sharer_sets(self) -> list[tuple[int, ...]]:
        """The sets of ranks that share one copy of what ZeRO shards: neighbours among the replicas."""
        sets, size = self.peer_sets(*self.replica_axes), self.sharers
        return [peers[n : n + size] for peers in sets for n in range(0, len(peers), size)]

    def holder_sets(self) -> list[tuple[int, ...]]:
        """The sets of ranks that hold the same slice, one of each copy."""
        sets = self.peer_sets(*self.replica_axes)
        return [peers[n :: self.sharers] for peers in sets for n in range(self.sharers)]

    def expert_sets(self) -> list[tuple[int, ...]]:
        """The sets of ranks that divide the experts of a layer: neighbours among the replicas."""
        sets, size = self.peer_sets(*self.replica_axes), self.expert
        return [peers[n : n + size] for peers in sets for n in range(0, len(peers), size)]

    def expert_replica_sets(self) -> list[tuple[int, ...]]:
        """The sets of ranks that hold the same experts."""
        sets = self.peer_sets(*self.replica_axes)
        return [peers[n :: self.expert] for peers in sets for n in range(self.expert)]

    def expert_sharer_sets(self) -> list[tuple[int, ...]]:
        """The sets of ranks that hold the same experts and share one copy of what ZeRO shards."""
        return [sharers[n :: self.expert] for sharers in self.sharer_sets() for n in range(self.expert)]

    def problems(self, world_size: int | None = None) -> list[str]:
        """Contradictions inside the layout, and with the number of processes if that is known."""
        found = []
        needed = {axis for axis in AXES if self.degree(axis) > 1}
        if len(set(self.order)) != len(self.order) or not needed <= set(self.order):
            found.append(
                f"plan.layout.order {list(self.order)} must name each axis once; of {list(AXES)} only those of degree "
                f"1 may be left out"
            )
        if self.world_size > MAX_PLAN_RANKS:
            found.append(
                f"plan.layout: {self._product()} = {self.world_size} ranks, and a plan has at most {MAX_PLAN_RANKS}; "
                f"lower a degree"
            )
        if not has_chunks(self.chunks, self.pipeline):
            found.append(
                f"plan.layout.chunks is {self.chunks} but plan.layout.pipeline is 1: chunks interleave the "
                f"stages of several pipeline ranks; set chunks to 1 or pipeline to 2"
            )
        if self.shards is not None and not divides_replicas(self.shards, self.replicas):
            legal = [n for n in degrees_dividing(self.replicas, self.shards) if n > 1]
            found.append(
                f"plan.layout.shards ({self.shards}) must divide the {self.replicas} replicas (data {self.data} x "
                f"context {self.context}): each copy of the sharded state has as many ranks; set it to "
                f"{' or '.join(map(str, [*legal, 'null']))}"
            )
        if world_size is not None and world_size != self.world_size:
            found.append(
                f"plan.layout: {self._product()} = {self.world_size} ranks, but there are {world_size} processes; "
                f"{self._fitting(world_size)}"
            )
        return found

    def _product(self) -> str:
        context = f" x context {self.context}" if self.context > 1 else ""
        return f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data}{context}"

    def _fitting(self, world_size: int) -> str:
        inner = self.tensor * self.pipeline * self.context
        if world_size % inner == 0:
            return f"plan.layout.data={world_size // inner} would fit"
        return f"start {self.world_size}, or choose tensor x pipeline that divides {world_size}"


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def degrees_dividing(number: int, near: int) -> tuple[int, ...]:
    """The divisors of `number` next to `near`, as remedies in messages."""
    below = [n for n in divisors(number) if n < near]
    above = [n for n in divisors(number) if n > near]
    return (*below[-1:], *above[:1])
