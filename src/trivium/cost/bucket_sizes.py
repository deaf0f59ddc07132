"""How many elements each bucket of a rank holds, padding included.

As plan.buckets' table says, from one layer's shapes instead of every layer's, so that a search over thousands
of layouts is fast; a test holds the two equal.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from trivium.cost.case import Case, state_bytes
from trivium.cost.stages import layers_by_stage
from trivium.plan.buckets import (
    BUCKET_ELEMENTS,
    ELEMENTS_ALONE,
    MOST_TIMES,
    SHARERS_OF_ONE,
    UNIT,
    bucket_table,
    in_buckets,
    padded,
)
from trivium.plan.layers.part import Number
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import TOKENS, local_shape, stage_parameters
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES


class Shard(NamedTuple):
    """One parameter as a tensor rank holds it: its elements, and what decides its bucket."""

    elements: int
    per_position: bool
    per_head: bool
    table: bool


class Held(NamedTuple):
    """A stage as it matters here."""

    layers: int
    first: bool
    last: bool


class Elements(NamedTuple):
    """Of a rank: all elements of its buckets, those of trained ones, and the bytes of its optimizer's states."""

    held: Number
    trained: Number
    state_bytes: Number


def elements_of_rank(plan: Plan, pipeline: int, sharer: int = 0) -> Elements:
    """Count a rank's elements as the runtime lays them out. sharer: its number among those that share what ZeRO
    shards, whose slices may belong to other groups of parameters."""
    masters, shares = BYTES[plan.precision.masters], plan.layout.sharers if plan.zero >= 1 else 1
    if not plan.optimizer.groups:
        held = sum(bucket_sizes(plan, pipeline))
        return Elements(held, held, held // shares * state_bytes(0, plan.optimizer, masters))
    rows = bucket_table(plan, pipeline)
    kept = 0
    for row in (row for row in rows if row.trains):
        size = row.padded // shares
        first = sharer % shares * size
        for span in row.spans:
            inside = min(span.stop, first + size) - max(span.start, first)
            kept += max(0, inside) * state_bytes(span.group, plan.optimizer, masters)
    return Elements(sum(row.padded for row in rows), sum(row.padded for row in rows if row.trains), kept)


def bucket_sizes(plan: Plan, pipeline: int) -> tuple[int, ...]:
    """Elements of each bucket of a pipeline rank; the same on all its tensor and data ranks."""
    different = len({layer.rows for layer, _ in plan.model.counted_layers}) > 1
    if plan.zero >= 3 or plan.heads_in_turns or plan.optimizer.groups or different:
        return tuple(row.padded for row in bucket_table(plan, pipeline))
    ends, layers = plan.layout.stages - 1, layers_by_stage(plan)
    held = tuple(Held(len(layers[s]), s == 0, s == ends) for s in plan.stages_of(pipeline))
    return _sizes(plan.model, plan.layout, held, sequence_parallel=plan.sequence_parallel)


def bucket_limit(case: Case) -> Number:
    """plan.buckets' limit of a bucket, of many layouts at once; a test holds the two equal."""
    sharers = np.asarray(case.sharers)
    among: Number = BUCKET_ELEMENTS * np.clip(sharers // SHARERS_OF_ONE, 1, MOST_TIMES)
    return np.where(sharers > 1, among, ELEMENTS_ALONE)


def slice_elements(case: Case, elements: Number) -> Number:
    """Of a bucket of so many elements, those that one replica updates: its slice, as plan.buckets pads it, of many
    layouts at once; a test holds the two equal. Without ZeRO it is the whole."""
    sharers = np.where(np.asarray(case.zero) >= 1, case.sharers, 1)
    return np.ceil(elements / (sharers * UNIT)) * UNIT


@lru_cache(maxsize=4096)
def stage_shards(model: ModelShape, tensor: int, held: Held) -> tuple[Shard, ...]:
    """A stage's parameters on one tensor rank, in order; layers are alike, so the first ones stand for any."""
    layout, like = Layout(tensor=tensor), model.model_copy(update={"layers": max(1, held.layers)})
    rows = stage_parameters(like, range(held.layers), first=held.first, last=held.last)
    return tuple(
        Shard(math.prod(local_shape(p, like, layout)), p.per_position, p.per_head, p.name == TOKENS) for p in rows
    )


@lru_cache(maxsize=4096)
def _sizes(model: ModelShape, layout: Layout, stages: tuple[Held, ...], *, sequence_parallel: bool) -> tuple[int, ...]:
    kinds: dict[tuple[bool, bool], list[int]] = {}
    both_ends = any(held.first for held in stages)  # then the last stage borrows no table
    shards = [
        shard
        for held in stages
        for shard in stage_shards(model, layout.tensor, held)
        if held.first or not (shard.table and both_ends)
    ]
    for shard in reversed(shards):
        over_tensor = (shard.per_head or (shard.per_position and sequence_parallel)) and layout.tensor > 1
        kind = (over_tensor, shard.table and model.head == "tied")
        kinds.setdefault(kind, []).append(padded(shard.elements))
    return tuple(
        padded(sum(bucket), layout.sharers)
        for sizes in kinds.values()
        for bucket in in_buckets(sizes, int, layout.sharers)
    )
