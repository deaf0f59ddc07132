"""Estimate the seconds and the memory of a plan on a machine.

A step consists of the pipeline schedule, simulated with the seconds of every action, the gradient reduction over
replicas, and the optimizer. cost/prices.py prices the pieces; docs/planner.md describes every term of the model.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import NONE, Case, case_of, puts_off
from trivium.cost.collectives import Strides, even_stride
from trivium.cost.compute import hardware_flops, model_flops
from trivium.cost.constants import shipped_constants
from trivium.cost.energy import step_joules
from trivium.cost.forward_pass import forward_pass_seconds
from trivium.cost.hardware import USABLE_MEMORY_SHARE, Machine
from trivium.cost.memory import MemoryEstimate, worst_rank
from trivium.cost.prices import Piece, Prices, action_seconds, prices, stage_pieces
from trivium.cost.replicas import fullest_of_plan
from trivium.cost.setting import Setting, setting
from trivium.cost.stack import Stack, own_stack
from trivium.cost.stages import layers_by_stage, recomputed_layers
from trivium.cost.step_time import SCHEDULES, Step, StepSeconds, parts_of_step, step
from trivium.cost.timeline import Timeline, simulate
from trivium.cost.wavefront import Run, finish_seconds
from trivium.errors import ConfigError
from trivium.plan.layout import Axis, Coordinate, Layout
from trivium.plan.plan import Plan
from trivium.plan.schedule import SCHEDULE_NAMES, Action, ops

Method = Literal["simulated", "closed form"]


@dataclass(frozen=True)
class Estimate:
    """The price of a plan. worst: coordinate of the rank with the largest memory. memory: bytes of that rank.
    memory_limit, host_limit: bytes that a rank may use of its device and its host. fits: whether these are enough.
    translation_seconds: of reverse address translation, which are part of the seconds of the collectives. busy_seconds:
    mean over all devices. joules: of all devices and hosts; None if the machine names no watts."""

    parts: StepSeconds
    tokens: int
    ranks: int
    model_flops: float
    hardware_flops: float
    peak_flops_per_second: float
    worst: Coordinate
    memory: MemoryEstimate
    memory_limit: float
    host_limit: float
    fits: bool
    translation_seconds: float = 0.0
    busy_seconds: float = 0.0
    joules: float | None = None

    @property
    def seconds(self) -> float:
        return float(self.parts.seconds)

    @property
    def bubble_fraction(self) -> float:
        """Waiting over working time of the busiest rank while the pipeline runs."""
        p = self.parts
        busy = p.compute + p.tensor_collectives + p.context_collectives + p.expert_collectives
        return float((p.bubble + p.pipeline_transfers) / busy)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def utilisation(self) -> float:
        """Model FLOPs utilisation (MFU): model FLOP/s over the peak of all devices."""
        return self.model_flops / self.seconds / self.peak_flops_per_second

    @property
    def limit(self) -> str:
        """The limiting resource: memory if the plan does not fit, else the largest part of the step."""
        if not self.fits:
            return "memory"
        parts = vars(self.parts)
        return max(parts, key=lambda name: parts[name]).replace("_", " ")

    def tree(self) -> dict[str, Any]:
        """Return plain data, as it is stored with a plan."""
        return {
            "seconds": self.seconds,
            "parts": dict(vars(self.parts)),
            "translation_seconds": self.translation_seconds,
            "busy_seconds": self.busy_seconds,
            "joules": self.joules,
            "tokens_per_second": self.tokens_per_second,
            "model_flops": self.model_flops,
            "hardware_flops": self.hardware_flops,
            "utilisation": self.utilisation,
            "bubble_fraction": self.bubble_fraction,
            "memory": {**vars(self.memory), "total": self.memory.total},
            "memory_limit": self.memory_limit,
            "host_limit": self.host_limit,
            "worst_coordinate": dict(self.worst._asdict()),
            "fits": self.fits,
            "limit": self.limit,
        }


@dataclass(frozen=True)
class Durations:
    """Seconds of a plan's actions on a machine, without other ranks on the same device."""

    plan: Plan
    machine: Machine
    stack: Stack
    forward_passes: int = 0

    @cached_property
    def at(self) -> Setting:
        """The inputs of the cost model."""
        strides = strides_of(self.plan.layout, self.machine)
        case = case_of(self.plan, self.forward_passes)
        return setting(case, self.machine, self.stack, shipped_constants(), strides)

    @cached_property
    def again(self) -> Prices:
        """Prices with every layer in the plan's recompute mode."""
        return self._prices(replace(self.at.case, recompute_every=1))

    @cached_property
    def kept(self) -> Prices:
        """Prices without recomputation."""
        return self._prices(replace(self.at.case, recompute=NONE))

    @cached_property
    def stages(self) -> tuple[Piece, Piece]:
        """Forward and backward of one micro-batch, by stage. A backward includes recomputation."""
        layers = np.array([len(layers) for layers in layers_by_stage(self.plan)])
        return stage_pieces(self.kept, self.again, layers, recomputed_layers(self.plan))

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds of work and collectives [operation, stage]."""
        return action_seconds(*self.stages, split=bool(puts_off(self.plan)))

    def action(self, action: Action) -> float:
        """Return the seconds of an action."""
        operations = list(ops(split=bool(puts_off(self.plan))))
        return float(self.seconds[operations.index(action.op), action.stage])

    def round_trip(self, pipeline: int) -> Piece:
        """Return the price of one micro-batch in all stages of a pipeline rank. A round-robin head counts with the
        rank's share of the micro-batches."""
        own, micro_batches = list(self.plan.stages_of(pipeline)), self.plan.batch.micro_batches(self.plan.layout)
        shares = np.array([self.plan.taken(pipeline, stage, micro_batches) for stage in own]) / micro_batches
        forward, backward = self.stages
        return Piece(*(float((np.asarray(by_stage)[own] * shares).sum()) for by_stage in forward.plus(backward)))

    @property
    def transfer(self) -> float:
        """Seconds to send the activations of one micro-batch to the next pipeline rank."""
        return float(self.again.transfer)

    def _prices(self, case: Case) -> Prices:
        return prices(replace(self.at, case=case))


def estimate(
    plan: Plan,
    machine: Machine,
    *,
    method: Method = "simulated",
    stack: Stack | None = None,
    share: float = USABLE_MEMORY_SHARE,
    forward_passes: int = 0,
) -> Estimate:
    """Price a legal plan.

    method: "closed form" is faster than the simulation and close to it (docs/planner.md). stack: the software that runs
    the plan, by default Trivium. share: usable fraction of a device's memory. forward_passes: of the batch
    before each step, as an objective has them.

    Raises ConfigError if the machine has too few devices.
    """
    problems = machine.problems(plan.layout.world_size)
    if problems:
        raise ConfigError("\n".join(problems))
    ranks, stack = plan.layout.world_size, stack or own_stack(plan, machine)
    worst, memory = worst_rank(plan)
    price = _closed if method == "closed form" else simulated
    (parts, busy), translation = price(plan, machine, stack, forward_passes), 0.0
    if machine.translates:
        without = price(plan, machine.without_translation(), stack, forward_passes).parts
        translation = float(parts.seconds - without.seconds)
    return Estimate(
        parts=parts,
        tokens=plan.tokens(plan.batch.sequences),
        ranks=ranks,
        model_flops=model_flops(plan.model, plan.batch.sequences).total,
        hardware_flops=hardware_flops(plan).total,
        peak_flops_per_second=machine.peak_flops_per_second(plan.precision.weights, ranks),
        worst=worst,
        memory=memory,
        memory_limit=machine.usable_memory(ranks, share),
        host_limit=machine.usable_host_memory(share),
        fits=bool(machine.holds(memory.total, memory.host, ranks, share)),
        translation_seconds=translation,
        busy_seconds=float(busy),
        joules=None if machine.watts is None else float(step_joules(machine, ranks, parts.seconds, busy)),
    )


def simulated(plan: Plan, machine: Machine, stack: Stack, forward_passes: int = 0) -> Step:
    """Return a plan's step from a simulation of its schedule."""
    durations = Durations(plan, machine, stack, forward_passes)
    at, micro_batches = durations.at, plan.batch.micro_batches(plan.layout)
    trips = [durations.round_trip(pipeline) for pipeline in range(plan.layout.pipeline)]
    work = max(trips, key=lambda trip: float(trip.total)).times(micro_batches)
    mean = Piece()
    for trip in trips:
        mean = mean.plus(trip.times(micro_batches / len(trips)))
    without, with_transfers = _pipeline_seconds(durations, (0.0, durations.transfer))
    fullest = fullest_of_plan(plan)
    return _as_floats(parts_of_step(at, prices(at), fullest, work, mean, (without, with_transfers)))


def forward_pass(plan: Plan, machine: Machine) -> float:
    """Return the seconds in which a plan scores the targets of one full batch, as a reference or a teacher does."""
    at = Durations(plan, machine, own_stack(plan, machine)).at
    return float(forward_pass_seconds(at, prices(at)))


def planned_timeline(
    plan: Plan, machine: Machine, *, stack: Stack | None = None, sequences: int | None = None
) -> Timeline:
    """Return the timeline of a step with the estimated seconds of its actions, as if no ranks shared a device. stack:
    the software that runs the plan, by default Trivium."""
    durations = Durations(plan, machine, stack or own_stack(plan, machine))
    factor = durations.stack.factor
    table = plan.schedule_table(sequences)
    return simulate(table, lambda action: factor * durations.action(action), factor * durations.transfer)


def strides_of(layout: Layout, machine: Machine) -> Strides:
    """Return the distance in ranks between neighbours along each axis, in the layout's order of axes. For the groups of
    replicas, the stride is that of the slowest group."""
    # The placement on nodes repeats after this many replicas; a scaling curve may have 10^9 replicas.
    alike, ranks = machine.devices_per_node * (layout.shards or 1) * layout.expert, layout.world_size
    layout = layout.model_copy(update={"data": min(layout.data, alike + layout.data % alike)})
    replicas = _groups(layout, *layout.replica_axes)
    copies = replicas.reshape(-1, layout.copies, layout.sharers)
    of_experts = copies.reshape(-1, layout.sharers // layout.expert, layout.expert).swapaxes(1, 2)
    every = (
        _groups(layout, "tensor"),
        _groups(layout, "context"),
        replicas,
        _groups(layout, "pipeline"),
        copies.reshape(-1, layout.sharers),
        copies.swapaxes(1, 2).reshape(-1, layout.copies),
        replicas.reshape(-1, layout.expert),
        of_experts.reshape(-1, layout.sharers // layout.expert),
    )
    return Strides(*(_stride_of(groups, machine, ranks) for groups in every))


def _groups(layout: Layout, *axes: Axis) -> NDArray[np.int64]:
    """Return all groups [group, rank] of ranks that differ only along `axes`."""
    others, own = ([a for a in layout.order if (a in axes) is within] for within in (False, True))
    ranks = np.arange(layout.world_size).reshape([layout.degree(axis) for axis in layout.order])
    ranks = ranks.transpose([layout.order.index(axis) for axis in (*others, *own)])
    return ranks.reshape(-1, math.prod(layout.degree(axis) for axis in own))


def _stride_of(groups: NDArray[np.int64], machine: Machine, ranks: int) -> float:
    """Return the stride of groups [group, rank]. If it is not uniform, return the stride at which as many ranks share a
    node as in the least occupied node. ranks: of the run."""
    node, steps = machine.devices_per_node, np.diff(groups)
    if not steps.size:
        return 1
    if (steps == steps[0, 0]).all():
        return float(even_stride(machine, ranks, groups.shape[1], steps[0, 0]))
    places = groups // node + np.arange(len(groups))[:, None] * groups.size
    return float(node / np.unique(places, return_counts=True)[1].min())


def _pipeline_seconds(durations: Durations, transfers: tuple[float, ...]) -> list[float]:
    """Return the seconds of the whole schedule for each duration of a transfer."""
    plan = durations.plan
    if plan.schedule not in SCHEDULE_NAMES:
        table = plan.schedule_table()
        return [simulate(table, durations.action, seconds).duration for seconds in transfers]
    micro_batches, layout = plan.batch.micro_batches(plan.layout), plan.layout
    step = plan.schedule, layout.pipeline, micro_batches, layout.chunks
    runs = [Run(*step, durations.seconds, transfer) for transfer in transfers]
    return [float(end) for end in finish_seconds(runs)]


def _closed(plan: Plan, machine: Machine, stack: Stack, forward_passes: int) -> Step:
    case = case_of(plan, forward_passes)
    strides, fullest = strides_of(plan.layout, machine), fullest_of_plan(plan)
    code = SCHEDULES[plan.schedule]
    return _as_floats(step(case, machine, stack, schedule=code, strides=strides, fullest=fullest))


def _as_floats(found: Step) -> Step:
    return Step(StepSeconds(**{name: float(value) for name, value in vars(found.parts).items()}), float(found.busy))
