"""Make a machine file from measurements: measured rates, and constants with which the cost model reproduces them.

This module has no model of its own. The constants are chosen so that the cost model's formulas for products, attention,
collectives and whole steps of small models give the measured seconds, robustly and with priors (constants.yaml).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import least_squares

from trivium.config import Tree, build, to_tree
from trivium.cost.case import case_of
from trivium.cost.collectives import all_gather_seconds, all_reduce_seconds, send_seconds
from trivium.cost.constants import priors, shipped_constants
from trivium.cost.hardware import THIS_MACHINE, Link, Machine, believed, machine_named
from trivium.cost.kernels import Device
from trivium.cost.layer import BACKWARD_ATTENTION, CAUSAL_SHARE
from trivium.cost.stack import own_stack
from trivium.cost.step_time import step
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES
from trivium.planner.measured import Attention, Exchange, Measured, Product, SmallStep

Array = NDArray[np.float64]

MAX_FULL_RESIDUAL = 0.1  # residual (logarithm of a ratio) beyond which a measurement loses weight
MIN_CONSTANT = 1e-12  # least value of a constant that may be 0, whose logarithm is fitted
BOUND_TOLERANCE = 1e-3  # relative distance from the bounds, above the rounding to four digits in the file
MIN_FIT_CHANGE = 1e-6  # the fit ends when its cost or its constants change by less
# Weights of residuals. That of a single product is 1. PRIOR_WEIGHT is that of a constant's distance from its start, in
# factors of e. Steps weigh more, because steps are what the planner predicts.
PRIOR_WEIGHT, STEP_WEIGHT, SPLIT_WEIGHT = 0.05, 10.0, 3.0
CACHED_BYTES = 100 << 20  # sums of vectors that move more read the memory of a GPU, not its cache
# Weights of steps on a GPU, smaller because single operations are measured better there: of a replayed step, and of a
# step that only measures the host.
REPLAYED_WEIGHT, HOST_WEIGHT = 2.0, 1.0
WIDTH_START = 50.0  # start value of `flash_width` on a GPU
LINK_START = (1e-4, 1e-4, 1e9)  # seconds to start, seconds of a hop, bytes per second
# Start values on a CPU, because the published runs on GPUs say nothing about its constants.
CPU_START = {
    "gemm_cpu": 0.95,
    "gemm_ramp": 5.0,
    "memory": 0.6,
    "operation_seconds": 5e-6,
    "flash_cpu": 0.4,
    "eager_traffic": 2.0,
}
# Part of a GPU's name in its driver, and the shipped machine with its data sheet.
KNOWN = {"A100": "dgx-a100-80", "H100": "dgx-h100", "H200": "dgx-h200", "B200": "dgx-b200"}
UNKNOWN = "workstation"


@dataclass(frozen=True)
class Compared:
    """A measurement and its prediction by the cost model, in seconds. weight: of its error in the fit."""

    what: str
    measured: float
    predicted: float
    weight: float = 1.0

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Probed:
    """A machine for a machine file, and its measurements beside its predictions."""

    machine: Machine
    compared: tuple[Compared, ...]

    def error_of(self, kind: str) -> float:
        """Return the median absolute error of the measurements whose names start with `kind`, or 0 without any."""
        errors = [abs(c.error) for c in self.compared if c.what.startswith(kind)]
        return float(np.median(errors)) if errors else 0.0


def probed(measured: Measured, name: str) -> Probed:
    """Return the machine whose predictions fit the measurements best."""
    machine = _with_rates(measured, name)
    machine = _with_constants(machine, measured)
    machine = machine.model_copy(update=_links(machine, measured))
    return Probed(machine, (*on_device(machine, measured), *between_ranks(machine, measured)))


def write_machine(path: Path, machine: Machine) -> None:
    """Write YAML for `--machine FILE`, with numbers of four digits."""
    tree = {k: v for k, v in to_tree(machine).items() if v is not None}
    path.write_text(yaml.safe_dump(_rounded(tree), sort_keys=False, allow_unicode=True), encoding="utf-8")


def _with_rates(measured: Measured, name: str) -> Machine:
    """Return the nearest shipped machine with the rates that single measurements give."""
    known = (machine for part, machine in KNOWN.items() if part in measured.device)
    base = THIS_MACHINE if measured.is_cpu else next(known, UNKNOWN)
    tree = to_tree(machine_named(base)) | {"name": name, "device": measured.device, "nodes": 1}
    when = f"measured on {datetime.now(UTC).date().isoformat()} by `trivium plan probe`"
    tree["devices_per_node"], tree["memory_bytes"] = measured.devices, measured.memory_bytes
    largest = max(measured.streams, key=lambda s: s.elements)
    tree["sources"] |= {"constants": when, "memory_bytes": when}
    if measured.is_cpu:
        fastest = {dtype: max(_speed(p) for p in of) for dtype, of in _by_dtype(measured.products).items()}
        tree["peak"] |= fastest
        tree["memory_bandwidth"] = largest.moved_bytes / largest.seconds
        tree["sources"] |= {"peak": f"fastest product {when}", "memory_bandwidth": f"sum of vectors {when}"}
    if measured.exchanges:
        tree["sources"] |= {"node_link": when, "fabric_link": when}
    tree["constants"] = {}
    return build(Machine, tree)


def _with_constants(machine: Machine, measured: Measured) -> Machine:
    """Choose the constants by least squares over all measurements of one device, within the bounds of a machine file.

    Without bounds they might become absurd on a machine that is busy with other work.
    """
    start = _start(machine)
    names = list(start)
    begin = np.log(np.array([start[n] for n in names]))
    low, high = np.array([believed(n) for n in names]).T
    bounds = np.log(np.maximum(low, MIN_CONSTANT) * (1 + BOUND_TOLERANCE)), np.log(high * (1 - BOUND_TOLERANCE))

    def misses(x: Array) -> Array:
        values = dict(zip(names, np.exp(x).tolist(), strict=True))
        found = on_device(_changed(machine, values), measured)
        return np.concatenate([_misses(found), PRIOR_WEIGHT * (x - begin)])

    found = least_squares(
        misses,
        np.clip(begin, *bounds),
        bounds=bounds,
        loss="soft_l1",
        f_scale=MAX_FULL_RESIDUAL,
        ftol=MIN_FIT_CHANGE,
        xtol=MIN_FIT_CHANGE,
    )
    return _changed(machine, dict(zip(names, np.exp(found.x).tolist(), strict=True)))


def _start(machine: Machine) -> dict[str, float]:
    if machine.generation == "cpu":
        return CPU_START
    of = machine.generation
    names = (f"gemm_{of}", f"flash_{of}", "gemm_ramp", "gemm_wave", "memory", "operation_seconds", "launch_seconds")
    return {n: max(priors()[n].value, 1e-9) for n in (*names, "eager_traffic")} | {"flash_width": WIDTH_START}


def _changed(machine: Machine, values: dict[str, float]) -> Machine:
    fixed = {"launch_seconds": 0.0} if machine.generation == "cpu" else {}  # a CPU launches nothing
    return machine.model_copy(update={"constants": {**fixed, **values}})


def _misses(found: Sequence[Compared]) -> Array:
    """Return the weighted logarithms of predicted over measured seconds."""
    weights, ratios = zip(*((c.weight, c.predicted / c.measured) for c in found), strict=True)
    misses: Array = np.asarray(weights) * np.log(ratios)
    return misses


def on_device(machine: Machine, measured: Measured) -> list[Compared]:
    """Compare everything that was measured on one device with the cost model."""
    constants = shipped_constants().with_values(machine.constants)
    devices = {dtype: Device(machine, constants, width) for dtype, width in BYTES.items()}
    found = []
    for p in measured.products:
        if p.dtype in ("fp32", "bf16"):
            device, what = devices[p.dtype], f"product {p.dtype} {p.m} x {p.k} x {p.n}"
            found.append(Compared(what, p.seconds, float(device.product(p.m, p.n, p.k))))
            if p.gradients:
                seconds = float(device.product(p.m, p.k, p.n) + device.weight_gradient(p.m, p.n, p.k))
                found.append(Compared(f"{what} backward", p.gradients, seconds))
    for a in measured.attentions:
        forward, backward = _attention(a, devices[a.dtype])
        what = f"attention {a.dtype} {a.sequences} x {a.heads} x {a.sequence} x {a.head_width}"
        found.append(Compared(f"{what} forward", a.forward, forward))
        found.append(Compared(f"{what} backward", a.backward, backward))
    if not measured.is_cpu:
        for s in measured.streams:
            if s.moved_bytes > CACHED_BYTES:
                found.append(Compared(f"sum of {s.elements}", s.seconds, float(devices["fp32"].moved(s.moved_bytes))))
    for small in measured.steps:
        on_gpu = REPLAYED_WEIGHT if small.recorded else HOST_WEIGHT
        weight = STEP_WEIGHT if measured.is_cpu else on_gpu
        found.append(_compared(small, machine, "replayed" if small.recorded else "alone", weight))
    return found


def between_ranks(machine: Machine, measured: Measured) -> list[Compared]:
    """Compare measured collectives and steps split over ranks with the cost model."""
    collectives = [
        Compared(
            f"exchange {e.collective} of {e.tensor_bytes} bytes over {e.ranks} ranks",
            e.seconds,
            exchange_seconds(e, machine),
        )
        for e in measured.exchanges
    ]
    split = [_compared(s, machine, f"over {_axis(s)}", SPLIT_WEIGHT) for s in measured.split_steps]
    return [*collectives, *split]


def _compared(small: SmallStep, machine: Machine, where: str, weight: float) -> Compared:
    plan = Plan.model_validate(
        {
            "model": small.model,
            "batch": small.batch,
            "layout": small.layout,
            "precision": {"weights": small.precision},
            "cuda_graphs": small.recorded,
        }
    )
    what = f"step of {plan.model.layers} layers, hidden {plan.model.hidden}, {where}"
    price = step(case_of(plan), machine, own_stack(plan, machine)).parts
    return Compared(what, small.seconds, float(price.seconds), weight)


def _axis(small: SmallStep) -> str:
    """Return a text such as "8 tensor ranks"."""
    return next(f"{n} {axis} ranks" for axis, n in small.layout.items() if isinstance(n, int) and n > 1)


def _attention(a: Attention, device: Device) -> tuple[float, float]:
    """Return predicted forward and backward seconds, as cost/layer.py prices fused attention."""
    heads = a.sequences * a.heads
    flops = 4.0 * heads * a.sequence**2 * a.head_width * CAUSAL_SHARE
    forward, backward = (
        device.attention(n * flops, heads, a.sequence, a.head_width) for n in (1.0, BACKWARD_ATTENTION)
    )
    return float(forward), float(backward)


def _links(machine: Machine, measured: Measured) -> dict[str, Link | dict[str, float]]:
    """Return one link for messages within and between nodes, because the ranks of this machine share it."""
    if not measured.exchanges:
        return {}
    busy = _core_share(machine, measured.exchanges)
    constants = machine.constants | ({"core_share": busy} if busy and measured.is_cpu else {})
    machine = machine.model_copy(update={"constants": constants})

    def misses(x: Array) -> Array:
        return _misses(between_ranks(machine.model_copy(update={"node_link": _link(x)}), measured))

    link = _link(least_squares(misses, np.log(LINK_START), loss="soft_l1", f_scale=3 * MAX_FULL_RESIDUAL).x)
    return {"node_link": link, "fabric_link": link, "constants": constants}


def _core_share(machine: Machine, exchanges: Sequence[Exchange]) -> float:
    """Return the share of a collective's time that is spent on a core. Exchanges in which every rank had its own core
    are used if there are any, because with fewer cores the ranks also wait for each other."""
    own = [e for e in exchanges if machine.crowding(e.ranks) == 1.0] or exchanges
    return min(1.0, float(np.median(np.array([e.busy_seconds * machine.crowding(e.ranks) / e.seconds for e in own]))))


def _link(x: Array) -> Link:
    start, latency, bandwidth = np.exp(x).tolist()
    return Link(bandwidth=bandwidth, efficiency=1.0, latency_seconds=latency, start_seconds=start)


def exchange_seconds(exchange: Exchange, machine: Machine) -> float:
    """Return predicted seconds of a collective within one node, longer by the crowding of ranks that share devices."""
    link, crowding = machine.node_link, float(machine.crowding(exchange.ranks))
    if exchange.collective == "send":
        return crowding * float(send_seconds(exchange.tensor_bytes, link))
    ring = all_reduce_seconds if exchange.collective == "all_reduce" else all_gather_seconds
    return crowding * float(ring(exchange.tensor_bytes, exchange.ranks, link))


def _by_dtype(products: Sequence[Product]) -> dict[str, list[Product]]:
    return {dtype: [p for p in products if p.dtype == dtype] for dtype in {p.dtype for p in products}}


def _speed(product: Product) -> float:
    return 2.0 * product.m * product.n * product.k / product.seconds


def _rounded(tree: Tree) -> Tree:
    """Round floats to four digits, because more would be noise."""
    return {
        k: _rounded(v) if isinstance(v, dict) else float(f"{v:.4g}") if isinstance(v, float) else v
        for k, v in tree.items()
    }
