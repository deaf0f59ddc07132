"""The constraints that a search applies to rows of choices, with the choices that each reads and a message.

They are those of Plan.check (plan/constraints.py): a row satisfies all of them if and only if its plan has no problem
(tests/planner/laws_test.py). The search adds one: tensor groups stay inside a node.
"""

from collections.abc import Callable
from math import gcd
from typing import NamedTuple

import numpy as np

from trivium.plan.constraints import (
    divides_batch,
    divides_context,
    divides_replicas,
    divides_sequence,
    has_chunks,
    has_layers,
    has_shards,
    interleaves,
    schedules_chunks,
)
from trivium.plan.float8 import Divided, division_problems
from trivium.plan.layers.part import Division
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import parameters
from trivium.plan.schedule import SCHEDULE_NAMES
from trivium.planner.grid import Column, Grid, Mask, Subject, micro_batches_of

INTERLEAVED, ZB_V = (SCHEDULE_NAMES.index(name) for name in ("interleaved", "zb-v"))


class Law(NamedTuple):
    """A constraint. columns: those that it reads, starting with the one that names a family of rejected rows. keeps:
    returns which rows satisfy it. told: message for a row that does not, formatted with the row's columns, `m` (the
    model), `unit` (of the batch) and `micro_batches`."""

    name: str
    columns: tuple[str, ...]
    keeps: Callable[[Subject, Grid], Mask]
    told: str


def _context(subject: Subject, grid: Grid) -> Mask:
    return divides_context(subject.model.sequence, grid["context"], zigzag=True)


def _layers(subject: Subject, grid: Grid) -> Mask:
    return has_layers(subject.model.layers, grid["pipeline"])


def _batch(subject: Subject, grid: Grid) -> Mask:
    return divides_batch(grid["sequences"], grid["micro"], grid["data"])


def _chunked(subject: Subject, grid: Grid) -> Mask:
    chunks, two = grid["chunks"], grid["schedule"] == ZB_V
    several = two | (grid["schedule"] == INTERLEAVED)
    return has_chunks(chunks, grid["pipeline"]) & schedules_chunks(chunks, several=several, two=two)


def _stages(subject: Subject, grid: Grid) -> Mask:
    return has_layers(subject.model.layers, grid["pipeline"] * grid["chunks"])


def _interleaved(subject: Subject, grid: Grid) -> Mask:
    even = interleaves(micro_batches_of(grid), grid["pipeline"])
    return (grid["schedule"] != INTERLEAVED) | even | ~_batch(subject, grid)


def _sequence(subject: Subject, grid: Grid) -> Mask:
    return divides_sequence(subject.model.sequence, grid["context"], grid["tensor"], grid["sequence_parallel"])


def _ring(subject: Subject, grid: Grid) -> Mask:
    divides_positions = grid["sequence_parallel"] == 1
    return (grid["overlap_tensor"] == 0) | (grid["tensor"] == 1) | (divides_positions & subject.rings)


def _expert(subject: Subject, grid: Grid) -> Mask:
    return (grid["data"] * grid["context"]) % grid["expert"] == 0


def _expert_shards(subject: Subject, grid: Grid) -> Mask:
    return grid["shards"] % grid["expert"] == 0


def _shards(subject: Subject, grid: Grid) -> Mask:
    shards = grid["shards"]
    return divides_replicas(shards, grid["data"] * grid["context"]) & has_shards(shards, grid["zero"])


def _float8(subject: Subject, grid: Grid) -> Mask:
    float8, model = subject.precision.float8, subject.model
    columns = [grid[name] for name in ("tensor", "context", "expert", "sequence_parallel", "micro")]
    if float8 is None:
        return np.full(len(grid), True)
    every, which = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
    rows, kept = parameters(model), []
    for tensor, context, expert, split, micro in every.tolist():
        degrees = {"tensor": tensor, "context": context, "expert": expert, "micro": micro, "row_chunks": 1}
        at = Divided.of(model.sequence // context, zigzag=context > 1, sequence_parallel=bool(split), **degrees)
        kept.append(not any(division_problems(float8, rows, model.layers, at)))
    found: Mask = np.array(kept, dtype=bool)[which.reshape(-1)]
    return found


LAWS = (
    Law(
        "context",
        ("context",),
        _context,
        "context {context} cuts a sequence of {m.sequence} into two pieces a rank, which are not equal",
    ),
    Law("layers", ("pipeline",), _layers, "pipeline {pipeline} is more than the {m.layers} layers"),
    Law(
        "expert",
        ("expert", "data", "context"),
        _expert,
        "expert {expert} does not divide the replicas, data {data} x context {context}",
    ),
    Law(
        "batch",
        ("data", "micro", "sequences"),
        _batch,
        "batch {sequences} is not a multiple of data {data} x micro {micro} = {unit}",
    ),
    Law(
        "chunks",
        ("chunks", "pipeline", "schedule"),
        _chunked,
        "{chunks} chunks need a pipeline and a schedule for them (zb-v has 2)",
    ),
    Law(
        "stages",
        ("pipeline", "chunks"),
        _stages,
        "pipeline {pipeline} x chunks {chunks} are more stages than the {m.layers} layers",
    ),
    Law(
        "interleaving",
        ("pipeline", "data", "micro", "schedule", "sequences"),
        _interleaved,
        "micro-batches {micro_batches} is not a multiple of pipeline {pipeline}, so interleaving is impossible",
    ),
    Law(
        "sequence_parallel",
        ("tensor", "context", "sequence_parallel"),
        _sequence,
        "tensor {tensor} does not divide the {m.sequence} positions over context {context}",
    ),
    Law(
        "ring",
        ("tensor", "sequence_parallel", "overlap_tensor"),
        _ring,
        "tensor {tensor} in a ring needs sequence parallelism, exact messages, and scales of 8-bit blocks",
    ),
    Law(
        "shards",
        ("shards", "data", "context", "zero"),
        _shards,
        "shards {shards} do not divide data {data} x context {context}, or ZeRO {zero} shards nothing",
    ),
    Law(
        "float8",
        ("tensor", "context", "expert", "sequence_parallel", "micro"),
        _float8,
        "tensor {tensor}, context {context} and micro {micro} divide what shares a scale of 8-bit numbers",
    ),
    Law(
        "expert_shards",
        ("shards", "expert"),
        _expert_shards,
        "shards {shards} are not a multiple of expert {expert}, so that no copy of the sharded state has all experts",
    ),
)


def inside_a_node(limit: int, ranks: int) -> Law:
    """Return the constraint that tensor groups divide nodes of `limit` devices, unless all ranks are on one node."""

    def keeps(subject: Subject, grid: Grid) -> Mask:
        tensor = grid["tensor"]
        return (limit % tensor == 0) | (np.full(len(grid), ranks <= limit) & (tensor <= limit))

    return Law("node", ("tensor",), keeps, f"tensor {{tensor}} spans nodes of {limit}")


def laws_of(model: ModelShape) -> tuple[Law, ...]:
    """Return the constraints on plans of a model: sizes that tensor ranks must divide, experts, and LAWS."""
    return (*(_divided(division) for division in model.divisions), _experts(model), *LAWS)


def _experts(model: ModelShape) -> Law:
    counts = model.expert_counts
    said = f"does not divide the {' and '.join(map(str, counts))} experts" if counts else "needs layers of experts"

    def keeps(subject: Subject, grid: Grid) -> Mask:
        return gcd(*counts) % grid["expert"] == 0 if counts else grid["expert"] == 1

    return Law("experts", ("expert",), keeps, f"expert {{expert}} {said}")


def _divided(division: Division) -> Law:
    return Law(
        division.field,
        ("tensor",),
        lambda subject, grid: division.size % grid["tensor"] == 0,
        f"tensor {{tensor}} does not divide the {division.size} {division.name}",
    )


def legal(subject: Subject, grid: Grid) -> Mask:
    """Return which rows are legal plans of a legal model, on as many ranks as the product of their degrees."""
    return np.logical_and.reduce([law.keeps(subject, grid) for law in laws_of(subject.model)])


def batch_unit(grid: Grid) -> Column:
    """Return for each row the number that must divide its batch size."""
    together: Column = np.where(grid["schedule"] == INTERLEAVED, grid["pipeline"], 1)  # micro-batches
    return grid["micro"] * grid["data"] * together


def told(law: Law, subject: Subject, row: dict[str, int]) -> str:
    """Return the message for a row that violates a constraint."""
    unit = row.get("micro", 1) * row.get("data", 1)
    micro_batches = row.get("sequences", subject.sequences) // unit
    return law.told.format(m=subject.model, unit=unit, micro_batches=micro_batches, **row)
