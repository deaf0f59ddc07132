"""Enumerate the legal plans of a search space, and count the rejected ones."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from trivium.cost.case import MODES
from trivium.plan.layout import divisors
from trivium.plan.schedule import SCHEDULE_NAMES
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Candidates, Column, Grid, Mask, Subject
from trivium.planner.laws import INTERLEAVED, ZB_V, Law, laws_of, told

MAX_VALUES_NAMED = 6  # of a family
IN_A_NODE = -1  # shards: as many as there are replicas in a node, until it is known how many these are


@dataclass(frozen=True)
class Rejected:
    """The layouts that one constraint rejects: their number, an example, and the rejected values."""

    law: str
    layouts: int
    example: str
    values: str


@dataclass(frozen=True, eq=False)
class Enumerated:
    """The legal plans, and the others grouped by the first constraint that they violate."""

    candidates: Candidates
    rejected: tuple[Rejected, ...]

    @property
    def combinations(self) -> int:
        """Number of all combinations, legal or not."""
        return len(self.candidates) + sum(family.layouts for family in self.rejected)


def enumerate_plans(
    subject: Subject,
    ranks: int,
    space: SearchSpace,
    search_laws: tuple[Law, ...] = (),
    waived: Collection[str] = (),
    *,
    node: int = 1,
) -> Enumerated:
    """Enumerate all combinations of a space on exactly `ranks` ranks, `node` of them per node.

    Choices without an effect are made once: sequence parallelism needs tensor ranks, ZeRO needs replicas, several
    sharding groups need several nodes of replicas, and a pipeline schedule needs a pipeline. search_laws: additional
    constraints. waived: names of constraints to skip.
    """
    laws = {law.name: law for law in (*search_laws, *laws_of(subject.model)) if law.name not in waived}
    steps = _steps(subject, space)
    grid = _allowed(Grid(degrees(ranks, space.context)), space).cross(sequences=[subject.sequences])
    rejected: list[Rejected] = []
    for number, choices in enumerate([{}, *steps]):
        grid = grid.cross(**choices) if choices else grid
        grid = _with_numbers(grid, space, node) if "shards" in choices else grid
        below = prod(len(next(iter(later.values()))) for later in steps[number:])
        known = [name for name, law in laws.items() if set(law.columns) <= grid.columns.keys()]
        for law in map(laws.pop, known):
            keeps = law.keeps(subject, grid)
            rejected += _families(law, subject, grid.take(~keeps), below)
            grid = grid.take(keeps)
    legal = grid.take(_once(subject, grid, space)).cross(
        recompute_every=[1], function_again=[0]
    )  # planner.leaner decides
    return Enumerated(Candidates(subject, legal), tuple(rejected))


def degrees(ranks: int, contexts: tuple[int, ...]) -> dict[str, Column]:
    """Return columns of all degrees whose product is `ranks`."""
    rows = [
        (tensor, pipeline, ranks // (tensor * pipeline * context), context)
        for tensor in divisors(ranks)
        for pipeline in divisors(ranks // tensor)
        for context in contexts
        if ranks // tensor // pipeline % context == 0
    ]
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return dict(zip(("tensor", "pipeline", "data", "context"), columns, strict=True))


def _allowed(grid: Grid, space: SearchSpace) -> Grid:
    """Return the rows whose degrees the space allows."""
    chosen = {axis: getattr(space, axis) for axis in ("tensor", "pipeline", "data")}
    for axis, allowed in chosen.items():
        grid = grid if allowed is None else grid.take(np.isin(grid[axis], allowed))
    return grid


def _with_numbers(grid: Grid, space: SearchSpace, node: int) -> Grid:
    """Replace the code IN_A_NODE of shards by the number of replicas per node.

    This requires nodes with equal numbers of replicas and ZeRO; otherwise all replicas share one copy. Rows that exist
    already are dropped.
    """
    asked = grid["shards"] == IN_A_NODE
    near, replicas = node // grid["tensor"], grid["data"] * grid["context"]
    several = (near > 1) & (near < replicas) & (replicas % np.maximum(near, 1) == 0) & (grid["zero"] > 0)
    numbers = np.where(asked, np.where(several, near, 0), grid["shards"])
    others = [code for code in map(_shards_code, space.shards) if code != IN_A_NODE]
    return Grid({**grid.columns, "shards": numbers}).take(~asked | ~np.isin(numbers, others))


def _shards_code(shards: int | str | None) -> int:
    return IN_A_NODE if isinstance(shards, str) else shards or 0


def _steps(subject: Subject, space: SearchSpace) -> list[dict[str, list[int]]]:
    """Return the choices in the order in which rows are extended, so that constraints reject rows early."""
    layers = subject.model.layers
    kinds = [
        (SCHEDULE_NAMES.index(name), chunks) for name in space.schedules for chunks in space.chunks_for(name, layers)
    ]
    experts = space.expert or divisors(gcd(*subject.model.expert_counts)) or (1,)
    return [
        {"expert": list(experts)},
        {"micro": list(space.micro)},
        {"schedule": [k[0] for k in kinds], "chunks": [k[1] for k in kinds]},
        _divisions(subject, space),
        {"recompute": [MODES[mode] for mode in space.recompute]},
        {"zero": list(space.zero)},
        {"shards": list(map(_shards_code, space.shards))},
    ]


def _divisions(subject: Subject, space: SearchSpace) -> dict[str, list[int]]:
    """Return the choices of sequence parallelism and, where activations are divided, of a ring."""
    every = [(int(split), int(ring)) for split in space.sequence_parallel for ring in space.overlap_tensor]
    legal = [(split, ring) for split, ring in every if not ring or (split and subject.rings)]
    split, ring = zip(*(legal or every), strict=True)
    return {"sequence_parallel": list(split), "overlap_tensor": list(ring)}


def _once(subject: Subject, grid: Grid, space: SearchSpace) -> Mask:
    """Return the rows whose choices have an effect."""
    divided = np.logical_and.reduce([grid[name] == column[0] for name, column in _divisions(subject, space).items()])
    names = [SCHEDULE_NAMES.index(name) for name in space.schedules]
    plain = next((name for name in names if name not in (INTERLEAVED, ZB_V)), names[0])  # one stage per rank
    return np.logical_and.reduce(
        [
            (grid["tensor"] > 1) | divided,
            (grid["data"] * grid["context"] > 1) | (grid["zero"] == space.zero[0]),
            (grid["pipeline"] > 1) | (grid["schedule"] == plain),
            (grid["shards"] != grid["data"] * grid["context"]) | (None not in space.shards),
        ]
    )


def _families(law: Law, subject: Subject, broken: Grid, below: int) -> Iterator[Rejected]:
    if not len(broken):
        return
    columns = [broken[name] for name in law.columns]
    values, counts = np.unique(np.stack(columns), axis=1, return_counts=True)
    largest = int(counts.argmax())
    row = {name: int(column[largest]) for name, column in zip(law.columns, values, strict=True)}
    first = np.unique(values[0])
    shown = ", ".join(map(str, first[:MAX_VALUES_NAMED])) + (
        f" and {len(first) - MAX_VALUES_NAMED} more" if len(first) > MAX_VALUES_NAMED else ""
    )
    yield Rejected(law.name, len(broken) * below, told(law, subject, row), f"{law.columns[0]} {shown}")
