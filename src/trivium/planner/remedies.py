"""Remedies for a model that fits nowhere: how much memory is missing, and which changes make some plan fit."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trivium.cost.hardware import Machine
from trivium.cost.memory import worst_rank
from trivium.plan.plan import Plan
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Candidates
from trivium.planner.pricing import some_plan_fits
from trivium.planner.search import MOST_OFFLOAD, Found, legal_plans
from trivium.planner.search_text import choices_text
from trivium.units import counted, format_bytes

MAX_DOUBLINGS = 11  # doublings of the number of nodes
MAX_CONTEXT = max(SearchSpace().context)


def does_not_fit(found: Found) -> str:
    """Return the message for a search in which no plan fits: what the smallest plan needs, and computed remedies."""
    machine, limit = found.machine, found.ranking.priced.memory_limit
    plan, held, host = _smallest(found)
    if machine.sharing == "shared":  # Device and host are one memory.
        held, host = held + host, 0
    lacks = f"holds {format_bytes(held)}{f', {format_bytes(held - limit)} too much' if held > limit else ''}"
    if host:
        room = machine.usable_host_memory(found.space.memory_fraction)
        lacks += f"{',' if held > limit else ''} and {format_bytes(host)} on its host, which has {format_bytes(room)}"
    legal, ways = len(found.ranking.priced.candidates), len(found.rankings)
    in_any = f" in any of {ways} ways to compile, record and offload it" if ways > 1 else ""
    return (
        f"none of {legal:,} legal plans fits on {machine.name}{in_any}: a rank may hold {format_bytes(limit)}, and the "
        f"smallest plan ({choices_text(plan)}{', ' if plan.offload.is_used else ''}{plan.offload.words}) {lacks}; "
        f"{'; '.join(remedies(found)) or 'use a machine with more memory'}"
    )


def _smallest(found: Found) -> tuple[Plan, float, int]:
    """Return the plan that lacks the least memory, and the bytes of its worst rank's device and host. Of each way to
    compile, record and offload, the plan with the fewest bytes on the device is compared."""
    every = []
    for ranking in found.rankings:
        row = int(ranking.priced.memory_bytes.argmin())
        plan = ranking.priced.candidates.plan_at(row)
        memory = worst_rank(plan)[1]
        # Where layers differ, the price of many plans at once may be too low. A plan may be rejected by either count.
        every.append((plan, max(float(ranking.priced.memory_bytes[row]), memory.total), memory.host))
    share = found.space.memory_fraction
    return min(every, key=lambda each: float(found.machine.lacking(each[1], each[2], found.ranks, share)))


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
            space.offload is not None and MOST_OFFLOAD not in (each.subject.offload for each in found.rankings),
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
        ranks = nodes * found.machine.devices_per_node
        yield f"{counted(nodes, 'node')} ({counted(ranks, 'rank')}) would be enough"


def nodes_that_fit(found: Found) -> int | None:
    """Return the smallest number of full nodes found on which some plan fits. Return None if there is no such number,
    or if the machine is a single host whose ranks share its devices."""
    machine, per_node = found.machine, found.machine.devices_per_node
    if machine.sharing == "shared":
        return None
    low = found.ranks // per_node

    def fits(nodes: int) -> bool:
        return _fits(found, machine.with_nodes(nodes), nodes * per_node, found.space)

    first = max(1, 2 * low)
    high = next((first << n for n in range(MAX_DOUBLINGS) if fits(first << n)), None)
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
    grid = legal_plans(found.subject, machine, ranks, space).candidates.grid
    tried = [ranking.subject for ranking in found.rankings]
    offloads = [each.offload for each in tried] if space.offload == found.space.offload else [MOST_OFFLOAD]
    # The most and the least that hosts may keep, because each of them is checked for every number of nodes.
    extremes = [pick(offloads, key=lambda each: each.optimizer + each.activations) for pick in (max, min)]
    subjects = dict.fromkeys(replace(each, offload=offload) for offload in extremes for each in tried)
    return any(some_plan_fits(Candidates(each, grid), machine, ranks, space) for each in subjects)
