"""Choose the layout that is fastest on a machine, whatever its number of ranks."""

from typing import NamedTuple

from trivium.cost.estimate import estimate
from trivium.cost.hardware import Machine
from trivium.errors import ConfigError
from trivium.plan.layout import Layout
from trivium.plan.plan import Plan
from trivium.planner.config import SearchSpace
from trivium.planner.pricing import Winner
from trivium.planner.search import best_search
from trivium.units import counted, format_seconds

# The fields of a plan that a search chooses, besides the size of a micro-batch.
CHOSEN = (
    "layout",
    "schedule",
    "rows",
    "partition",
    "zero",
    "recompute",
    "offload",
    "sequence_parallel",
    "overlap_tensor",
    "cuda_graphs",
)
COUNTS_COMPARED = 3  # numbers of hosts that are compared


class Fastest(NamedTuple):
    """A plan of the same training, and why it was chosen, in words."""

    plan: Plan
    why: str


def fastest(plan: Plan, machine: Machine, space: SearchSpace) -> Fastest:
    """Return the plan under which this training is fastest on the machine, by the planner's prediction.

    One rank, every power of two, and a rank on every device are tried. Model, batch, precision and optimizer stay as
    they are, so that training can resume in it. It is `plan` itself if nothing is faster.
    """
    own = estimate(plan, machine).seconds
    found = [best for ranks in _rank_counts(machine.devices) if (best := _best(plan, machine, ranks, space))]
    found.sort(key=lambda each: each[1].seconds)
    if not found or found[0][1].seconds >= own:
        return Fastest(plan, f"no layout is faster here than {_text(plan.layout)}, {format_seconds(own)} a step")
    chosen, winner = found[0]
    others = [f"{_text(other.layout)} {format_seconds(price.seconds)}" for other, price in found[1:]]
    others.append(f"{_text(plan.layout)} {format_seconds(own)}")
    limit, share = winner.limits[0]
    why = (
        f"{_text(chosen.layout)} is fastest on {counted(machine.devices, machine.device)}, by the planner's estimate: "
        f"{format_seconds(winner.seconds)} a step, {share:.0%} of it {limit}; instead of {', '.join(others)}"
    )
    return Fastest(chosen, why)


def for_hosts(
    plan: Plan, machine: Machine, hosts: tuple[int, int], ranks: int, space: SearchSpace
) -> tuple[int, Plan, str] | None:
    """Return the number of hosts with `ranks` ranks each on which this training is fastest, its plan there, and why;
    None if no layout fits. hosts: the least and the largest number.

    The largest numbers for which a layout exists are compared. Tensor groups stay inside a host.
    """
    found: list[tuple[float, int, Plan]] = []
    for count in range(hosts[1], hosts[0] - 1, -1):
        if len(found) < COUNTS_COMPARED and (
            best := _best(plan, of_hosts(machine, count, ranks), count * ranks, space)
        ):
            found.append((best[1].seconds, -count, best[0]))
    if not found:
        return None
    seconds, count, chosen = min(found, key=lambda each: each[:2])
    others = [f"{counted(-n, 'host')} {format_seconds(s)}" for s, n, _ in found if n != count]
    why = f"{_text(chosen.layout)} on {counted(-count, 'host')}: {format_seconds(seconds)} a step by the planner"
    return -count, chosen, why + (f"; instead of {', '.join(others)}" if others else "")


def of_hosts(machine: Machine, hosts: int, ranks: int) -> Machine:
    """Return a machine of `hosts` nodes with `ranks` devices each. Ranks that share a node's cores count as devices."""
    memory = int(machine.memory_per_rank(ranks)) if machine.sharing == "shared" else machine.memory_bytes
    changes = {"sharing": "exclusive", "nodes": hosts, "devices_per_node": ranks, "memory_bytes": memory}
    return machine.model_copy(update=changes)


def _rank_counts(devices: int) -> list[int]:
    powers = [1 << n for n in range(devices.bit_length())]
    return sorted({*powers, devices})


def _best(plan: Plan, machine: Machine, ranks: int, space: SearchSpace) -> tuple[Plan, Winner] | None:
    """Return the fastest plan of `ranks` ranks to which the training can move, or None if there is none."""
    try:
        # A plan keeps its own way to run, except that CUDA graphs stop where the new layout forbids them.
        by_time = {"objective": "time", "compiled": (plan.compiled,), "cuda_graphs": (plan.cuda_graphs,)}
        micro = {"micro": (plan.batch.micro,)} if plan.micro_changes_numbers else {}
        ranking = best_search(plan, machine, ranks, space.model_copy(update=by_time | micro)).ranking
    except ConfigError:  # no layout of `ranks` ranks is legal
        return None
    for winner in ranking.winners(len(ranking.simulated)):
        moved = _moved(plan, winner.plan)
        if not moved.check():
            return moved, winner
    return None


def _moved(plan: Plan, to: Plan) -> Plan:
    """Return a plan with its work divided as `to` divides it."""
    batch = plan.batch.model_copy(update={"micro": to.batch.micro})
    return plan.model_copy(update={name: getattr(to, name) for name in CHOSEN} | {"batch": batch})


def _text(layout: Layout) -> str:
    degrees = {name: layout.degree(name) for name in ("tensor", "pipeline", "data", "context")}
    parts = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
    return f"{parts} ({counted(layout.world_size, 'rank')})" if parts else "1 rank"
