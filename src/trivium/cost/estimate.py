"""What a plan costs on a machine.

A step is the schedule, simulated with the seconds of every action, then the reduction of gradients over replicas,
then the optimizer. The pieces are priced by cost/prices.py; docs/planner.md describes the model term by term.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import NONE, Case, case_of
from trivium.cost.collectives import Strides, even_stride
from trivium.cost.compute import hardware_flops, model_flops
from trivium.cost.constants import shipped_constants
from trivium.cost.hardware import USABLE, Machine
from trivium.cost.memory import MemoryEstimate, worst_rank
from trivium.cost.prices import Piece, Prices, prices
from trivium.cost.replicas import data_seconds, fullest_of_plan, optimizer_seconds
from trivium.cost.setting import Setting, setting
from trivium.cost.sharing import on_shared_cores
from trivium.cost.stack import Stack, own_stack
from trivium.cost.stages import layers_by_stage
from trivium.cost.step_time import SCHEDULES, StepSeconds, step_seconds
from trivium.cost.timeline import Timeline, simulate
from trivium.cost.wavefront import Run, finish_seconds
from trivium.errors import ConfigError
from trivium.plan.layout import Axis, Coordinate, Layout
from trivium.plan.plan import Plan
from trivium.plan.schedule import SCHEDULE_NAMES, SPLIT_SCHEDULES, Action, Op

Method = Literal["simulated", "closed form"]


@dataclass(frozen=True)
class Estimate:
    """The price of a plan. memory: of the worst rank, at `worst`; memory_limit: what a rank may use."""

    parts: StepSeconds
    tokens: int
    ranks: int
    model_flops: float
    hardware_flops: float
    peak_flops_per_second: float
    worst: Coordinate
    memory: MemoryEstimate
    memory_limit: float

    @property
    def seconds(self) -> float:
        return float(self.parts.seconds)

    @property
    def bubble_fraction(self) -> float:
        """Time in which the busiest rank waits over time in which it works, inside the pipeline."""
        p = self.parts
        busy = p.compute + p.tensor_collectives + p.context_collectives
        return float((p.bubble + p.pipeline_transfers) / busy)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def utilisation(self) -> float:
        """Model FLOP/s over the peak of all devices (MFU)."""
        return self.model_flops / self.seconds / self.peak_flops_per_second

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.memory_limit

    @property
    def limit(self) -> str:
        """What binds: memory when the plan does not fit, else the largest part of the step."""
        if not self.fits:
            return "memory"
        parts = vars(self.parts)
        return max(parts, key=lambda name: parts[name]).replace("_", " ")

    def tree(self) -> dict[str, Any]:
        """Plain data, as it is stored with a plan."""
        return {
            "seconds": self.seconds,
            "parts": dict(vars(self.parts)),
            "tokens_per_second": self.tokens_per_second,
            "model_flops": self.model_flops,
            "hardware_flops": self.hardware_flops,
            "utilisation": self.utilisation,
            "bubble_fraction": self.bubble_fraction,
            "memory": {**vars(self.memory), "total": self.memory.total},
            "memory_limit": self.memory_limit,
            "worst_coordinate": dict(self.worst._asdict()),
            "fits": self.fits,
            "limit": self.limit,
        }


@dataclass(frozen=True)
class Durations:
    """Seconds of what a plan does on a machine while nothing competes for the devices."""

    plan: Plan
    machine: Machine
    stack: Stack

    @cached_property
    def at(self) -> Setting:
        """The plan as numbers, where it runs and with what."""
        strides = strides_of(self.plan.layout, self.machine)
        return setting(case_of(self.plan), self.machine, self.stack, shipped_constants(), strides)

    @cached_property
    def again(self) -> Prices:
        """Pieces where layers are recomputed as the plan says."""
        return self._prices(replace(self.at.case, recompute_every=1))

    @cached_property
    def kept(self) -> Prices:
        """Pieces where layers keep everything."""
        return self._prices(replace(self.at.case, recompute=NONE))

    @cached_property
    def stages(self) -> tuple[tuple[Piece, Piece], ...]:
        """Forward and backward of one micro-batch through each stage."""
        return tuple(self._of_stage(stage) for stage in range(self.plan.stages))

    def action(self, action: Action) -> float:
        """Work and collectives of an action; backwards recompute first, and split ones take half each."""
        forward, backward = self.stages[action.stage]
        if action.op is Op.FORWARD:
            return float(forward.total)
        return float(backward.total) * (1.0 if action.op is Op.BACKWARD else 0.5)

    def round_trip(self, pipeline: int) -> Piece:
        """One micro-batch through all stages of a pipeline rank; of a head in turns, its share."""
        total, micro_batches = Piece(), self.plan.batch.micro_batches(self.plan.layout)
        for stage in self.plan.stages_of(pipeline):
            both = self.stages[stage][0].plus(self.stages[stage][1])
            taken = self.plan.taken(pipeline, stage, micro_batches)
            total = total.plus(both if taken == micro_batches else both.times(taken / micro_batches))
        return total

    @property
    def transfer(self) -> float:
        """The activations of one micro-batch to the next pipeline rank."""
        return float(self.again.transfer)

    def _prices(self, case: Case) -> Prices:
        return prices(replace(self.at, case=case))

    def _of_stage(self, stage: int) -> tuple[Piece, Piece]:
        layers = layers_by_stage(self.plan)[stage]
        repeated = sum(self.plan.recompute.mode_of(layer) != "none" for layer in layers)
        forward = self.kept.layer_forward.times(len(layers))
        backward = self.again.layer_backward.times(repeated).plus(
            self.kept.layer_backward.times(len(layers) - repeated)
        )
        if stage == 0:
            forward, backward = (forward.plus(self.kept.embedding_forward), backward.plus(self.kept.embedding_backward))
        if stage == self.plan.last_stage:
            forward, backward = forward.plus(self.kept.head_forward), backward.plus(self.kept.head_backward)
        return forward, backward


def estimate(
    plan: Plan, machine: Machine, *, method: Method = "simulated", stack: Stack | None = None, share: float = USABLE
) -> Estimate:
    """Price a legal plan. "closed form" replaces the simulation: faster, and near it (docs/planner.md). stack: the
    software that runs it, by default ours. share: of a device's memory that a plan may use.

    Raises ConfigError if the machine has too few devices.
    """
    problems = machine.problems(plan.layout.world_size)
    if problems:
        raise ConfigError("\n".join(problems))
    ranks, stack = plan.layout.world_size, stack or own_stack(plan, machine)
    worst, memory = worst_rank(plan)
    devices = ranks if machine.sharing == "exclusive" else machine.devices
    return Estimate(
        parts=_closed(plan, machine, stack) if method == "closed form" else simulated(plan, machine, stack),
        tokens=plan.tokens(plan.batch.sequences),
        ranks=ranks,
        model_flops=model_flops(plan.model, plan.batch.sequences).total,
        hardware_flops=hardware_flops(plan).total,
        peak_flops_per_second=float(getattr(machine.peak, plan.precision.weights)) * devices,
        worst=worst,
        memory=memory,
        memory_limit=machine.usable_memory(ranks, share),
    )


def simulated(plan: Plan, machine: Machine, stack: Stack) -> StepSeconds:
    """The seconds of a plan's step alone; the schedule is simulated."""
    durations = Durations(plan, machine, stack)
    at = durations.at
    crowd = machine.crowding(plan.layout.world_size)
    micro_batches = plan.batch.micro_batches(plan.layout)
    trips = [durations.round_trip(p) for p in range(plan.layout.pipeline)]
    work = max(trips, key=lambda trip: float(trip.total)).times(micro_batches)
    without, whole = _pipeline_seconds(durations, (0.0, durations.transfer))
    bubble, transfers = max(0.0, without - float(work.total)), whole - without
    if machine.sharing == "shared":
        mean = Piece()
        for trip in trips:
            mean = mean.plus(trip.times(micro_batches / len(trips)))
        shared = on_shared_cores(machine, at.case, mean, whole, transfers, at.constants.core_share)
        work, bubble, transfers = shared.work, float(shared.bubble), float(shared.transfers)
    factor, fullest = stack.factor, fullest_of_plan(plan)
    return StepSeconds(
        compute=factor * float(work.compute),
        tensor_collectives=factor * float(work.tensor),
        context_collectives=factor * float(work.context),
        bubble=factor * bubble,
        pipeline_transfers=factor * transfers,
        data_collectives=factor * float(work.gathers + crowd * data_seconds(at, prices(at), fullest)),
        optimizer=factor * float(crowd * optimizer_seconds(at, fullest)),
    )


def planned_timeline(plan: Plan, machine: Machine, *, sequences: int | None = None) -> Timeline:
    """The schedule of a step with the seconds estimated for its actions, as if no rank shared a device."""
    durations = Durations(plan, machine, own_stack(plan, machine))
    return simulate(plan.schedule_table(sequences), durations.action, durations.transfer)


def strides_of(layout: Layout, machine: Machine) -> Strides:
    """How far apart neighbours along each axis are, in the layout's order; of replicas, sharers and holders, too, such
    that as many of a group are in a node as of the slowest."""
    # Nodes look alike after as many replicas, of which a curve may have thousands of millions.
    alike, ranks = machine.devices_per_node * (layout.shards or 1), layout.world_size
    layout = layout.model_copy(update={"data": min(layout.data, alike + layout.data % alike)})
    replicas = _groups(layout, *layout.replica_axes)
    copies = replicas.reshape(-1, layout.copies, layout.sharers)
    every = (
        _groups(layout, "tensor"),
        _groups(layout, "context"),
        replicas,
        _groups(layout, "pipeline"),
        copies.reshape(-1, layout.sharers),
        copies.swapaxes(1, 2).reshape(-1, layout.copies),
    )
    return Strides(*(_stride_of(groups, machine, ranks) for groups in every))


def _groups(layout: Layout, *axes: Axis) -> NDArray[np.int64]:
    """[group, rank]: all groups of ranks that differ only along some axes, which are in the layout's order."""
    others, own = ([a for a in layout.order if (a in axes) is within] for within in (False, True))
    ranks = np.arange(layout.world_size).reshape([layout.degree(axis) for axis in layout.order])
    ranks = ranks.transpose([layout.order.index(axis) for axis in (*others, *own)])
    return ranks.reshape(-1, math.prod(layout.degree(axis) for axis in own))


def _stride_of(groups: NDArray[np.int64], machine: Machine, ranks: int) -> float:
    """How far apart the ranks of groups are; where they are not all alike, such that as many are in a node as of the
    group and in the node with fewest. ranks: of the run."""
    node, steps = machine.devices_per_node, np.diff(groups)
    if not steps.size:
        return 1
    if (steps == steps[0, 0]).all():
        return float(even_stride(machine, ranks, groups.shape[1], steps[0, 0]))
    places = groups // node + np.arange(len(groups))[:, None] * groups.size
    return float(node / np.unique(places, return_counts=True)[1].min())


def _pipeline_seconds(durations: Durations, transfers: tuple[float, ...]) -> list[float]:
    """Of the whole schedule, once for each time of a transfer."""
    plan = durations.plan
    if plan.schedule not in SCHEDULE_NAMES:
        table = plan.schedule_table()
        return [simulate(table, durations.action, seconds).duration for seconds in transfers]
    forward, backward = np.array([[p.total for p in stage] for stage in durations.stages], float).T
    split = plan.schedule in SPLIT_SCHEDULES
    seconds = np.stack([forward, backward / 2, backward / 2] if split else [forward, backward])
    micro_batches, layout = plan.batch.micro_batches(plan.layout), plan.layout
    runs = [
        Run(plan.schedule, layout.pipeline, micro_batches, layout.chunks, seconds, transfer) for transfer in transfers
    ]
    return [float(end) for end in finish_seconds(runs)]


def _closed(plan: Plan, machine: Machine, stack: Stack) -> StepSeconds:
    parts = step_seconds(
        case_of(plan),
        machine,
        stack,
        schedule=SCHEDULES[plan.schedule],
        strides=strides_of(plan.layout, machine),
        fullest=fullest_of_plan(plan),
    )
    return StepSeconds(**{name: float(value) for name, value in vars(parts).items()})
