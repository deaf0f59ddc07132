"""A model that fits nowhere: by how much, and what would make it fit."""

from collections.abc import Iterator

import numpy as np

from trivium.cost.hardware import Machine
from trivium.planner.config import SearchSpace
from trivium.planner.leaner import as_lean_as_needed
from trivium.planner.search import Found, legal_plans, memory_limit
from trivium.units import format_bytes

DOUBLINGS = 12  # of the nodes, until something fits
EVERYTHING = SearchSpace()  # what may be chosen where the user left some choices out


def does_not_fit(found: Found) -> str:
    """For a search whose ranking is empty: how much the smallest plan holds, and remedies that were computed."""
    held = found.ranking.priced.memory_bytes
    smallest = found.ranking.priced.candidates.plan_at(int(held.argmin()))
    over = held.min() - found.ranking.priced.memory_limit
    layout = smallest.layout
    return (
        f"none of {len(held):,} legal plans fits on {found.machine.name}: a rank may hold "
        f"{format_bytes(found.ranking.priced.memory_limit)}, and the smallest plan (tensor {layout.tensor}, pipeline "
        f"{layout.pipeline}, data {layout.data}, context {layout.context}, micro {smallest.batch.micro}, recompute "
        f"{smallest.recompute.words}, ZeRO stage {smallest.zero}) holds {format_bytes(held.min())}, "
        f"{format_bytes(over)} too much; {'; '.join(remedies(found)) or 'use a machine with more memory'}"
    )


def remedies(found: Found) -> Iterator[str]:
    """What makes some plan fit, each computed by a search of memory alone."""
    for told, space in _wider(found.space):
        if _fits(found, found.machine, found.ranks, space):
            yield told
    nodes = nodes_that_fit(found)
    if nodes is not None:
        ranks = nodes * found.machine.devices_per_node
        yield f"{nodes:,} nodes ({ranks:,} ranks) would be enough"


def nodes_that_fit(found: Found) -> int | None:
    """The smallest number of nodes found on which some plan fits; None where none is, or nodes share nothing."""
    machine = found.machine
    if machine.sharing == "shared":
        return None
    per_node = machine.devices_per_node
    low = -(-found.ranks // per_node)

    def fits(nodes: int) -> bool:
        larger = machine.with_nodes(nodes)
        return _fits(found, larger, nodes * per_node, found.space)

    high = next((low << n for n in range(1, DOUBLINGS) if fits(low << n)), None)
    if high is None:
        return None
    low = high // 2
    while high - low > max(1, low // 32):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _wider(space: SearchSpace) -> Iterator[tuple[str, SearchSpace]]:
    """Choices that were left out and hold less."""
    if 1 not in space.micro:
        yield "micro-batches of 1 sequence would fit", space.model_copy(update={"micro": (1,)})
    if "layer" not in space.recompute:
        yield "recompute 'layer' would fit", space.model_copy(update={"recompute": ("layer",)})
    if not space.activation_function:
        told = "activation function computed again would fit"
        yield told, space.model_copy(update={"activation_function": True})
    if 3 not in space.zero:
        yield "ZeRO stage 3 would fit", space.model_copy(update={"zero": (3,)})
    if max(space.context) < max(EVERYTHING.context):
        told = f"context up to {max(EVERYTHING.context)} would fit"
        yield told, space.model_copy(update={"context": EVERYTHING.context})
    if None not in space.shards:
        yield "one copy shared by all replicas would fit", space.model_copy(update={"shards": (None,)})
    for axis in ("tensor", "pipeline", "data"):
        if getattr(space, axis) is not None:
            yield f"another degree of {axis} would fit", space.model_copy(update={axis: None})


def _fits(found: Found, machine: Machine, ranks: int, space: SearchSpace) -> bool:
    # Interleaving holds more than the schedules it is made of, and has by far the most layouts.
    lean = tuple(name for name in space.schedules if name != "interleaved")
    space = space.model_copy(update={"schedules": lean or space.schedules})
    candidates = legal_plans(found.subject, machine, ranks, space).candidates
    limit = memory_limit(machine, ranks, space)
    return bool(np.any(as_lean_as_needed(candidates, limit, space)[1] <= limit))
