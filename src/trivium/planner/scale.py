"""Strong and weak scaling of a plan by the number of its replicas.

The figures are predictions of the cost model, not measurements. A curve beyond the machine's size assumes more nodes of
the same kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Literal, NamedTuple

import numpy as np

from trivium.config import to_tree
from trivium.cost.case import case_of
from trivium.cost.collectives import all_gather_seconds
from trivium.cost.estimate import Durations, Estimate, estimate, simulated
from trivium.cost.hardware import USABLE_MEMORY_SHARE, Machine
from trivium.cost.overlap import moved_by_kernels, moved_when_triggered
from trivium.cost.prices import sublayers, triggered_seconds
from trivium.cost.stack import own_stack
from trivium.cost.tensor_ring import ring_products, seconds_in_ring
from trivium.errors import ConfigError
from trivium.plan.layers.part import Number
from trivium.plan.plan import Plan
from trivium.planner.triggered import Product, simulate

Kind = Literal["strong", "weak"]
KINDS: tuple[Kind, ...] = ("strong", "weak")
DEFAULT_MAX_DEVICES = 16384  # of a curve
MAX_LISTED_DEGREES = 1 << 16  # with more degrees, the points are not chosen from a list of all of them
MAX_POINTS = 16  # points of a curve
FORMAT = "trivium-scale-1"
# For communication-heavy sublayers, as simulated by the authors of T3 (arXiv 2401.16677, abstract).
T3_PUBLISHED = {"speed_up_geomean": 0.30, "speed_up_most": 0.47, "less_data_moved": 0.22}


@dataclass(frozen=True)
class Point:
    """A point of a curve. efficiency: tokens per second and device, relative to the curve's first point."""

    devices: int
    data: int
    sequences: int
    price: Estimate
    efficiency: float
    triggered_seconds: float | None  # seconds of a step with simulated tile-triggered collectives
    beyond: bool  # more devices than the machine has

    def tree(self) -> dict[str, Any]:
        priced = self.price.tree()
        names = ("seconds", "tokens_per_second", "utilisation", "bubble_fraction", "parts", "fits")
        return {
            "devices": self.devices,
            "data": self.data,
            "sequences": self.sequences,
            **{name: priced[name] for name in names},
            "efficiency": self.efficiency,
            "beyond_machine": self.beyond,
            "t3_seconds_simulated": self.triggered_seconds,
        }


class Triggered(NamedTuple):
    """A sublayer and its all-gather: seconds, and bytes moved by one device, with separate kernels and with collectives
    that are triggered tile by tile."""

    name: str
    seconds: float
    triggered_seconds: float
    moved_bytes: float
    triggered_bytes: float
    contended_speed_up: float | None  # of the event simulation, in which product and messages share the memory

    @property
    def speed_up(self) -> float:
        """Return 0.3 if triggering makes the sublayer 1.3 times as fast and messages do not slow the product."""
        return self.seconds / self.triggered_seconds - 1

    @property
    def less_moved(self) -> float:
        return 1 - self.triggered_bytes / self.moved_bytes


class InRing(NamedTuple):
    """A product of one layer with its messages, predicted: seconds without a ring, and in one."""

    name: str
    seconds: float
    ideal_seconds: float
    contended_seconds: float


@dataclass(frozen=True)
class Scaling:
    """Scaling curves, the sublayers of one layer under simulated T3, and its products in a ring."""

    plan: Plan
    machine: Machine
    curves: dict[Kind, list[Point]]
    sublayers: list[Triggered]
    in_ring: list[InRing]

    def tree(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": "predicted by the cost model, not measured",
            "plan": to_tree(self.plan),
            "machine": to_tree(self.machine),
            "curves": {kind: [p.tree() for p in points] for kind, points in self.curves.items()},
            "in_ring": [each._asdict() for each in self.in_ring],
            "t3": {
                "label": "simulated: hardware that does not exist",
                "sublayers": [
                    {**s._asdict(), "speed_up": s.speed_up, "less_data_moved": s.less_moved} for s in self.sublayers
                ],
                "speed_up_geomean": geomean_speed_up(self.sublayers),
                "published": T3_PUBLISHED,
            },
        }


def scaling(
    plan: Plan, machine: Machine, *, largest: int = DEFAULT_MAX_DEVICES, share: float = USABLE_MEMORY_SHARE
) -> Scaling:
    """Return both curves up to `largest` devices. share: fraction of a device's memory that a plan may use.

    Raises ConfigError if one replica needs more devices, or if the ranks share the machine's devices.
    """
    replica = plan.layout.world_size // plan.layout.data
    least = replica * _unit(plan)
    if largest < least:
        of = "of one replica (tensor x pipeline x context of plan.layout)"
        if plan.layout.shards is not None:
            of = f"of the {plan.layout.shards} replicas that share one copy (plan.layout.shards)"
        raise ConfigError(
            f"--largest {largest} is fewer than the {least} devices {of}; raise it to {least} or more, or split the "
            f"model over fewer"
        )
    if machine.sharing == "shared":
        raise ConfigError(
            f"{machine.name} is one machine whose {machine.devices} devices the ranks share: a curve over devices "
            "needs a machine of nodes; name one with --machine"
        )
    curves = {kind: _curve(plan, machine, kind, largest, share) for kind in KINDS}
    return Scaling(plan, machine, curves, triggered_sublayers(plan, machine), products_in_ring(plan, machine))


def triggered_sublayers(plan: Plan, machine: Machine) -> list[Triggered]:
    """Return what T3 would do to the products of a layer that end in a tensor-parallel sum; none for tensor 1."""
    if plan.layout.tensor == 1:
        return []
    here, degree = Durations(plan, machine, own_stack(plan, machine)).at, plan.layout.tensor
    link, found = here.link(degree, here.strides.tensor), []
    for s in sublayers(here):
        gather = float(all_gather_seconds(s.result_bytes, degree, link))
        kernels, triggered = (
            float(by(s.operand_bytes, s.result_bytes, degree).total) for by in (moved_by_kernels, moved_when_triggered)
        )
        found.append(
            Triggered(
                s.name,
                float(s.alone) + gather,
                float(triggered_seconds(here, s)) + gather,
                kernels,
                triggered,
                _contended(plan, machine, s.inner),
            )
        )
    return found


def products_in_ring(plan: Plan, machine: Machine) -> list[InRing]:
    """Return the products of a layer that `plan.overlap_tensor` puts, or would put, in a ring; none for tensor 1."""
    if plan.layout.tensor == 1:
        return []
    at = Durations(plan, machine, own_stack(plan, machine)).at
    return [InRing(p.name, *map(float, seconds_in_ring(at, p))) for p in ring_products(at.case)]


def _contended(plan: Plan, machine: Machine, inner: Number) -> float | None:
    """Return the simulated speed-up with contention; None on a machine without multiprocessors, such as a CPU."""
    if not machine.multiprocessors:
        return None
    case = case_of(plan)
    ran = simulate(Product("", int(case.positions), int(case.hidden), int(inner), plan.layout.tensor), machine)
    return ran.speed_up(ran.product_first)


def geomean_speed_up(found: Sequence[Triggered]) -> float:
    """Return the geometric mean of the speed-ups; 0 for an empty sequence."""
    return float(np.exp(np.mean([np.log1p(s.speed_up) for s in found])) - 1) if found else 0.0


def _curve(plan: Plan, machine: Machine, kind: Kind, largest: int, share: float) -> list[Point]:
    replica = plan.layout.world_size // plan.layout.data
    triggers = own_stack(plan, machine).model_copy(update={"tile_triggered": True})
    points: list[Point] = []
    for data in degrees(plan, kind, largest // replica):
        there = with_replicas(plan, data, kind)
        devices = replica * data
        enough = machine.with_nodes(max(machine.nodes, -(-devices // machine.devices_per_node)))
        price = estimate(there, enough, share=share)
        each = price.tokens_per_second / devices
        first = points[0].price.tokens_per_second / points[0].devices if points else each
        triggered = float(simulated(there, enough, triggers).parts.seconds) if plan.layout.tensor > 1 else None
        points.append(
            Point(devices, data, there.batch.sequences, price, each / first, triggered, devices > machine.devices)
        )
    return points


def degrees(plan: Plan, kind: Kind, most: int) -> list[int]:
    """Return the data degrees of a curve, the plan's own among them. Those of a strong curve divide the batch. If
    several copies of the sharded state exist, the size of the sharding group stays the same."""
    own, unit = plan.layout.data, _unit(plan)
    if kind == "strong":
        few = range(1, min(most, plan.batch.sequences) + 1)
        legal = [d for d in few if plan.batch.sequences % d == 0 and not with_replicas(plan, d, kind).check()]
    elif most <= MAX_LISTED_DEGREES:
        legal = list(range(unit, most + 1, unit))
    else:
        units = np.geomspace(1, most // unit, MAX_POINTS).astype(int)
        legal = sorted({*(unit * units).tolist(), own})
    if len(legal) > MAX_POINTS:  # Space the points evenly on a logarithmic axis.
        wanted = np.geomspace(legal[0], legal[-1], MAX_POINTS)
        nearest = {min(legal, key=lambda d: abs(d - w)) for w in wanted}
        legal = sorted(nearest | ({own} & set(legal)))
    return legal


def _unit(plan: Plan) -> int:
    """Return the smallest number of data ranks that holds complete copies of the sharded state."""
    shards = plan.layout.shards or 1
    return shards // gcd(shards, plan.layout.context)


def with_replicas(plan: Plan, data: int, kind: Kind) -> Plan:
    """Return the plan with `data` replicas, without a batch ramp. Strong scaling keeps the batch, weak scaling the
    sequences of each replica."""
    each = plan.batch.sequences // plan.layout.data
    sequences = plan.batch.sequences if kind == "strong" else each * data
    return plan.model_copy(
        update={
            "layout": plan.layout.model_copy(update={"data": data}),
            "batch": plan.batch.model_copy(update={"sequences": sequences, "ramp": None}),
        }
    )
