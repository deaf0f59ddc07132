"""Layers by stage of one plan, cached for repeated pricing, and the number of layers by rank of many plans."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import Case
from trivium.plan.layers.part import Number
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.partition import Partition
from trivium.plan.plan import Plan


def layers_by_stage(plan: Plan) -> tuple[range, ...]:
    """Return `plan.layers_of` of every stage."""
    layers = _layers(plan.partition, plan.model, plan.layout)
    return (*layers, plan.layers_of(plan.last_stage)) if plan.heads_in_turns else layers


def recomputed_layers(plan: Plan) -> NDArray[np.int64]:
    """Return how many layers of each stage the backward recomputes, at least in part."""
    counts = np.array([len(layers) for layers in layers_by_stage(plan)])
    return every_nth(counts, plan.recompute.every) * int(plan.recompute.mode != "none")


def recomputed_away(plan: Plan) -> NDArray[np.int64]:
    """Return how many layers of each stage the backward recomputes from what is on the host."""
    counts = np.array([len(layers) for layers in layers_by_stage(plan)])
    return every_nth(counts, plan.recompute.every, layers_away(plan)) * int(plan.recompute.mode != "none")


def recomputed_last(plan: Plan) -> NDArray[np.int64]:
    """Return 1 for each stage whose last layer is recomputed, else 0."""
    counts = np.array([len(layers) for layers in layers_by_stage(plan)])
    return last_of_every_nth(counts, plan.recompute.every) * int(plan.recompute.mode != "none")


def layers_away(plan: Plan) -> NDArray[np.int64]:
    """Return how many layers of each stage have their activations on the host."""
    return np.array([plan.offload.layers(len(layers)) for layers in layers_by_stage(plan)])


def every_nth(layers: NDArray[np.int64], every: int, first: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return how many layers of each stage have a number that `every` divides. layers: layers of each stage, in
    order. first: how many of each stage count, the first ones; by default all."""
    begin = np.cumsum(layers) - layers
    found: NDArray[np.int64] = -(-(begin + (layers if first is None else first)) // every) + (-begin // every)
    return found


def last_of_every_nth(layers: NDArray[np.int64], every: int) -> NDArray[np.int64]:
    """Return 1 for each stage whose last layer has a number that `every` divides, else 0."""
    found: NDArray[np.int64] = every_nth(layers, every) - every_nth(layers, every, np.maximum(layers - 1, 0))
    return found


def layers_of_ranks(case: Case) -> tuple[Number, Number, Number]:
    """Return the layers of the first pipeline rank, the largest number on a middle rank, and the layers of the last
    rank, under `Partition()`: equal stages with the remainder in the middle, minus `ends_lighter` at both ends."""
    p, stages = np.asarray(case.pipeline), np.asarray(case.pipeline) * case.chunks
    lighter = np.where(p > 1, case.ends_lighter, 0)
    whole, over = np.divmod(np.asarray(case.layers) + 2 * lighter, stages)
    start = (stages - over) // 2  # first stage with an additional layer
    chunks = np.asarray(case.chunks)

    def extra(rank: Number) -> Number:
        """Return how many stages of a rank, p apart, have an additional layer."""
        more: Number = -((rank - start - over) // p) + (rank - start) // p
        return more

    # In a V-shaped schedule the first rank has the two outermost stages, the last rank the two innermost.
    folded = (np.asarray(case.ends_together) > 0) & (p > 1)
    first = np.where(folded, np.maximum(0, over - stages + 2), extra(0))
    last = np.where(folded, np.minimum(2, over), extra(p - 1))
    most = np.where(folded, np.minimum(2, over), -(-over // p))
    each = chunks * whole
    return each + first - lighter, each + most, each + last - lighter


@lru_cache(maxsize=1024)
def _layers(partition: Partition, model: ModelShape, layout: Layout) -> tuple[range, ...]:
    return partition.ranges(model, layout)
