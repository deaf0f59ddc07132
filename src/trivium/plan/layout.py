"""Where each rank sits on the three roads. Pure data, no torch."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from trivium.config import Config

Axis = Literal["pipeline", "data", "tensor"]
Degree = Annotated[int, Field(ge=1)]

AXES: tuple[Axis, Axis, Axis] = ("pipeline", "data", "tensor")


class Coordinate(NamedTuple):
    """A rank's position on each axis."""

    pipeline: int
    data: int
    tensor: int


class Layout(Config):
    """Degrees of parallelism.

    order: slowest axis first. By default tensor varies fastest, so tensor groups are consecutive ranks and
    stay inside a node, data peers are near, and pipeline neighbours are the furthest apart (MT-NLG, section
    2: traffic per unit of time is tensor > data > pipeline).
    """

    tensor: Degree = 1
    pipeline: Degree = 1
    data: Degree = 1
    chunks: Degree = 1  # stages held by each pipeline rank
    order: tuple[Axis, Axis, Axis] = AXES

    @property
    def world_size(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def stages(self) -> int:
        """Stage numbers run over the whole model."""
        return self.pipeline * self.chunks

    def degree(self, axis: Axis) -> int:
        """Number of ranks along an axis."""
        return int(getattr(self, axis))

    def coordinate(self, rank: int) -> Coordinate:
        """The position of `rank`."""
        at: dict[str, int] = {}
        for axis in reversed(self.order):
            rank, at[axis] = divmod(rank, self.degree(axis))
        return Coordinate(**at)

    def rank(self, at: Coordinate) -> int:
        """The rank at a position; the inverse of `coordinate`."""
        number = 0
        for axis in self.order:
            number = number * self.degree(axis) + getattr(at, axis)
        return number

    def peers(self, rank: int, axis: Axis) -> tuple[int, ...]:
        """Ranks that differ from `rank` only along `axis`, by their index on it."""
        here = self.coordinate(rank)
        return tuple(self.rank(here._replace(**{axis: i})) for i in range(self.degree(axis)))

    def problems(self, world_size: int | None = None) -> list[str]:
        """Contradictions inside the layout, and with the number of processes if that is known."""
        found = []
        if sorted(self.order) != sorted(AXES):
            found.append(f"plan.layout.order {list(self.order)} must name each of {list(AXES)} once")
        if self.chunks > 1 and self.pipeline == 1:
            found.append(
                f"plan.layout.chunks is {self.chunks} but plan.layout.pipeline is 1: chunks interleave the "
                f"stages of several pipeline ranks; set chunks to 1 or pipeline to 2"
            )
        if world_size is not None and world_size != self.world_size:
            found.append(
                f"plan.layout: tensor {self.tensor} x pipeline {self.pipeline} x data {self.data} = "
                f"{self.world_size} ranks, but there are {world_size} processes; {self._fitting(world_size)}"
            )
        return found

    def _fitting(self, world_size: int) -> str:
        inner = self.tensor * self.pipeline
        if world_size % inner == 0:
            return f"plan.layout.data={world_size // inner} would fit"
        return f"start {self.world_size}, or choose tensor x pipeline that divides {world_size}"


def degrees_dividing(number: int, near: int) -> tuple[int, ...]:
    """The divisors of `number` next to `near`, as remedies in messages."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    below = [n for n in divisors if n < near]
    above = [n for n in divisors if n > near]
    return (*below[-1:], *above[:1])
