"""How a plan scales with the number of its replicas: the same batch on more devices, or a batch that grows with them.

Predictions of the cost model, not measurements. Beyond the machine's own size: more nodes of the same kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Literal, NamedTuple

import numpy as np

from trivium.config import to_tree
from trivium.cost.case import case_of
from trivium.cost.collectives import all_gather_seconds
from trivium.cost.constants import shipped_constants
from trivium.cost.estimate import Estimate, estimate, simulated, strides_of
from trivium.cost.hardware import USABLE, Machine
from trivium.cost.overlap import moved_by_kernels, moved_when_triggered
from trivium.cost.prices import sublayers, triggered_seconds
from trivium.cost.setting import setting
from trivium.cost.stack import own_stack
from trivium.errors import ConfigError
from trivium.plan.plan import Plan

Kind = Literal["strong", "weak"]
KINDS: tuple[Kind, ...] = ("strong", "weak")
LARGEST = 16384
MANY = 1 << 16  # degrees, of which the points are chosen one by one
MOST_POINTS = 16  # of a curve
FORMAT = "trivium-scale-1"
# Of its communication-heavy sublayers, as T3's authors simulate them (arXiv 2401.16677, abstract).
T3_PUBLISHED = {"speed_up_geomean": 0.30, "speed_up_most": 0.47, "less_data_moved": 0.22}


@dataclass(frozen=True)
class Point:
    """One number of devices. efficiency: of tokens per second and device, over those of the curve's first point."""

    devices: int
    data: int
    sequences: int
    price: Estimate
    efficiency: float
    triggered_seconds: float | None  # of a step with simulated tile-triggered collectives
    beyond: bool  # more devices than the machine has

    def tree(self) -> dict[str, Any]:
        """Plain data."""
        p = self.price
        return {
            "devices": self.devices,
            "data": self.data,
            "sequences": self.sequences,
            "seconds": p.seconds,
            "tokens_per_second": p.tokens_per_second,
            "utilisation": p.utilisation,
            "bubble_fraction": p.bubble_fraction,
            "parts": dict(vars(p.parts)),
            "efficiency": self.efficiency,
            "fits": p.fits,
            "beyond_machine": self.beyond,
            "t3_seconds_simulated": self.triggered_seconds,
        }


class Triggered(NamedTuple):
    """A sublayer with its all-gather: seconds and bytes of a device as kernels do it, and triggered tile by tile."""

    name: str
    seconds: float
    triggered_seconds: float
    moved_bytes: float
    triggered_bytes: float

    @property
    def speed_up(self) -> float:
        """0.3: 1.3 times as fast."""
        return self.seconds / self.triggered_seconds - 1

    @property
    def less_moved(self) -> float:
        return 1 - self.triggered_bytes / self.moved_bytes


@dataclass(frozen=True)
class Scaling:
    """Curves by kind, and the sublayers of one layer under simulated T3."""

    plan: Plan
    machine: Machine
    curves: dict[Kind, list[Point]]
    sublayers: list[Triggered]

    def tree(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "format": FORMAT,
            "kind": "predicted by the cost model, not measured",
            "plan": to_tree(self.plan),
            "machine": to_tree(self.machine),
            "curves": {kind: [p.tree() for p in points] for kind, points in self.curves.items()},
            "t3": {
                "label": "simulated: hardware that does not exist",
                "sublayers": [
                    {**s._asdict(), "speed_up": s.speed_up, "less_data_moved": s.less_moved} for s in self.sublayers
                ],
                "speed_up_geomean": geomean_speed_up(self.sublayers),
                "published": T3_PUBLISHED,
            },
        }


def scaling(plan: Plan, machine: Machine, *, largest: int = LARGEST, share: float = USABLE) -> Scaling:
    """Both curves up to `largest` devices. share: of a device's memory that a plan may use.

    Raises ConfigError where not even one replica has as few, or where ranks share the machine's devices.
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
    return Scaling(plan, machine, curves, triggered_sublayers(plan, machine))


def triggered_sublayers(plan: Plan, machine: Machine) -> list[Triggered]:
    """What T3 would do to the products of a layer whose results tensor ranks sum; none without tensor ranks."""
    if plan.layout.tensor == 1:
        return []
    here = setting(
        case_of(plan), machine, own_stack(plan, machine), shipped_constants(), strides_of(plan.layout, machine)
    )
    degree = plan.layout.tensor
    road = here.road(degree, here.strides.tensor)
    found = []
    for s in sublayers(here):
        gather = float(all_gather_seconds(s.result_bytes, degree, road))
        before, after = (
            moved(s.operand_bytes, s.result_bytes, degree) for moved in (moved_by_kernels, moved_when_triggered)
        )
        found.append(
            Triggered(
                s.name,
                float(s.alone) + gather,
                float(triggered_seconds(here, s)) + gather,
                float(before.total),
                float(after.total),
            )
        )
    return found


def geomean_speed_up(found: Sequence[Triggered]) -> float:
    """0.3: 1.3 times as fast."""
    return float(np.exp(np.mean([np.log1p(s.speed_up) for s in found])) - 1) if found else 0.0


def _curve(plan: Plan, machine: Machine, kind: Kind, largest: int, share: float) -> list[Point]:
    replica = plan.layout.world_size // plan.layout.data
    triggers = own_stack(plan, machine).model_copy(update={"tile_triggered": True})
    points: list[Point] = []
    for data in degrees(plan, kind, largest // replica):
        there = with_replicas(plan, data, kind)
        devices = replica * data
        nodes = -(-devices // machine.devices_per_node)
        enough = machine.with_nodes(max(machine.nodes, nodes))
        price = estimate(there, enough, share=share)
        each = price.tokens_per_second / devices
        first = points[0].price.tokens_per_second / points[0].devices if points else each
        triggered = float(simulated(there, enough, triggers).seconds) if plan.layout.tensor > 1 else None
        points.append(
            Point(devices, data, there.batch.sequences, price, each / first, triggered, devices > machine.devices)
        )
    return points


def degrees(plan: Plan, kind: Kind, most: int) -> list[int]:
    """Data degrees of a curve: for the same batch those that divide it; otherwise any. The plan's own is among them.
    Where replicas share several copies of the sharded state, as many share one at all degrees."""
    own, unit = plan.layout.data, _unit(plan)
    if kind == "strong":
        few = range(1, min(most, plan.batch.sequences) + 1)
        legal = [d for d in few if plan.batch.sequences % d == 0 and not with_replicas(plan, d, kind).check()]
    elif most <= MANY:
        legal = list(range(unit, most + 1, unit))
    else:
        units = np.geomspace(1, most // unit, MOST_POINTS).astype(int)
        legal = sorted({*(unit * units).tolist(), own})
    if len(legal) > MOST_POINTS:  # even on a logarithmic axis
        wanted = np.geomspace(legal[0], legal[-1], MOST_POINTS)
        nearest = {min(legal, key=lambda d: abs(d - w)) for w in wanted}
        legal = sorted(nearest | ({own} & set(legal)))
    return legal


def _unit(plan: Plan) -> int:
    """The fewest data ranks that hold whole copies of the sharded state."""
    shards = plan.layout.shards or 1
    return shards // gcd(shards, plan.layout.context)


def with_replicas(plan: Plan, data: int, kind: Kind) -> Plan:
    """The plan with so many replicas: its batch, or as many sequences for each as now. A ramp ends before."""
    each = plan.batch.sequences // plan.layout.data
    sequences = plan.batch.sequences if kind == "strong" else each * data
    return plan.model_copy(
        update={
            "layout": plan.layout.model_copy(update={"data": data}),
            "batch": plan.batch.model_copy(update={"sequences": sequences, "ramp": None}),
        }
    )
