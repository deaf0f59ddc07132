"""Remedies for a model that fits nowhere: how much memory is missing, and which changes make some plan fit."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trivium.cost.hardware import Machine
from trivium.cost.memory import worst_rank
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Candidates
from trivium.planner.pricing import leanest
from trivium.planner.search import MOST_OFFLOAD, Found, legal_plans, memory_limit
from trivium.units import format_bytes

MAX_DOUBLINGS = 12  # doublings of the number of nodes
MAX_CONTEXT = max(SearchSpace().context)


def does_not_fit(found: Found) -> str:
    """Return the message for a search with an empty ranking: what the smallest plan needs, and computed remedies."""
    held, limit = found.ranking.priced.memory_bytes, found.ranking.priced.memory_limit
    smallest = found.ranking.priced.candidates.plan_at(int(held.argmin()))
    layout = smallest.layout
    lacks = f"holds {format_bytes(held.min())}, {format_bytes(held.min() - limit)} too much"
    if held.min() <= limit:
        host, room = worst_rank(smallest)[1].host, found.machine.usable_host_memory(found.space.memory_fraction)
        lacks = f"holds {format_bytes(held.min())} and {format_bytes(host)} on its host, which has {format_bytes(room)}"
    expert = f", expert {layout.expert}" if found.subject.model.expert_counts else ""
    return (
        f"none of {len(held):,} legal plans fits on {found.machine.name}: a rank may hold {format_bytes(limit)}, and "
        f"the smallest plan (tensor {layout.tensor}, pipeline {layout.pipeline}, data {layout.data}, context "
        f"{layout.context}{expert}, micro {smallest.batch.micro}, recompute {smallest.recompute.words}, ZeRO stage "
        f"{smallest.zero}) {lacks}; "
        f"{'; '.join(remedies(found)) or 'use a machine with more memory'}"
    )


def remedies(found: Found) -> Iterator[str]:
    """Yield the changes that make some plan fit. Each is checked by a search that prices memory only."""
    space = found.space
    wider: list[tuple[bool, str, dict[str, Any]]] = [
        (1 not in space.micro, "micro-batches of 1 sequence", {"micro": (1,)}),
        ("layer" not in space.recompute, "recompute 'layer'", {"recompute": ("layer",)}),
        (not space.activation_function, "activation function computed again", {"activation_function": True}),
        (3 not in space.zero, "ZeRO stage 3", {"zero": (3,)}),
        (max(space.context) < MAX_CONTEXT, f"context up to {MAX_CONTEXT}", {"context": SearchSpace().context}),
        (None not in space.shards, "one copy shared by all replicas", {"shards": (None,)}),
        (
            space.offload is not None and MOST_OFFLOAD not in found.offloads,
            "state and activations on the host (search.offload=null)",
            {"offload": None},
        ),
        *(
            (getattr(space, axis) is not None, f"another degree of {axis}", {axis: None})
            for axis in ("tensor", "pipeline", "data", "expert")
        ),
    ]
    for excluded, change, update in wider:
        if excluded and _fits(found, found.machine, found.ranks, space.model_copy(update=update)):
            yield f"{change} would fit"
    nodes = nodes_that_fit(found)
    if nodes is not None:
        yield f"{nodes:,} nodes ({nodes * found.machine.devices_per_node:,} ranks) would be enough"


def nodes_that_fit(found: Found) -> int | None:
    """Return the smallest number of nodes found on which some plan fits. Return None if there is no such number, or if
    the machine is a single host whose ranks share its devices."""
    machine, per_node = found.machine, found.machine.devices_per_node
    if machine.sharing == "shared":
        return None
    low = -(-found.ranks // per_node)

    def fits(nodes: int) -> bool:
        return _fits(found, machine.with_nodes(nodes), nodes * per_node, found.space)

    high = next((low << n for n in range(1, MAX_DOUBLINGS) if fits(low << n)), None)
    if high is None:
        return None
    low = high // 2
    while high - low > max(1, low // 32):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _fits(found: Found, machine: Machine, ranks: int, space: SearchSpace) -> bool:
    # Interleaving needs more memory than the other schedules and has by far the most layouts.
    others = tuple(name for name in space.schedules if name != "interleaved")
    space = space.model_copy(update={"schedules": others or space.schedules})
    grid, limit = legal_plans(found.subject, machine, ranks, space).candidates.grid, memory_limit(machine, ranks, space)
    offloads = found.offloads if space.offload == found.space.offload else (MOST_OFFLOAD,)
    # The least and the most that hosts may keep, because each of them is checked for every number of nodes.
    extremes = (pick(offloads, key=lambda each: each.optimizer + each.activations) for pick in (min, max))
    subjects = [replace(found.subject, offload=each) for each in dict.fromkeys(extremes)]
    return any(len(leanest(Candidates(each, grid), machine, limit, space)[2]) for each in subjects)
