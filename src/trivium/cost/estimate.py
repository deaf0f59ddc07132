"""What a plan costs on a machine: the first analytic figure.

A step is the schedule, simulated with the seconds of every action, then the reduction of gradients over data
ranks, then the optimizer. An action takes its matrix products at one stated fraction of the device's peak (or the
reading of its weights, if that takes longer), and its collectives over tensor ranks. Left out for now, and why
the figure is a first one: memory-bound operations apart from weights, the shapes of the products, overlap of
communication with work, contention of links, stragglers, and the software's own delays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from trivium.cost.buffers import layer_elements
from trivium.cost.collectives import all_gather_seconds, all_reduce_seconds, send_seconds
from trivium.cost.compute import hardware_flops, model_flops, stage_flops
from trivium.cost.hardware import Machine
from trivium.cost.memory import MemoryEstimate, worst_rank
from trivium.cost.stages import layers_by_stage, stages_by_rank
from trivium.cost.timeline import Timeline, simulate
from trivium.errors import ConfigError
from trivium.plan.layout import Coordinate
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES
from trivium.plan.schedule import Action, Op

Method = Literal["simulated", "closed form"]


@dataclass(frozen=True)
class Parts:
    """Seconds of a step of the busiest pipeline rank; they add up to the step."""

    compute: float
    tensor_collectives: float
    bubble: float
    pipeline_transfers: float
    data_collectives: float
    optimizer: float

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


@dataclass(frozen=True)
class Estimate:
    """The price of a plan. memory: of the worst rank, at `worst`; memory_limit: what a rank may use."""

    parts: Parts
    tokens: int
    ranks: int
    model_flops: float
    hardware_flops: float
    peak_flops_per_second: float
    bubble_fraction: float
    worst: Coordinate
    memory: MemoryEstimate
    memory_limit: float

    @property
    def seconds(self) -> float:
        return self.parts.total

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

    @cached_property
    def _stages(self) -> tuple[tuple[float, float, float, float], ...]:
        """Of each stage and one micro-batch: compute and tensor collectives, forward then backward."""
        return tuple(self._of_stage(stage) for stage in range(self.plan.layout.stages))

    def action(self, action: Action) -> float:
        """Work and collectives of an action; backwards recompute first, and split ones take half each."""
        forward, forward_tensor, backward, backward_tensor = self._stages[action.stage]
        if action.op is Op.FORWARD:
            return forward + forward_tensor
        return (backward + backward_tensor) * (1.0 if action.op is Op.BACKWARD else 0.5)

    def round_trip(self, pipeline: int) -> tuple[float, float]:
        """Compute, and tensor collectives, of one micro-batch through all stages of a pipeline rank."""
        held = [self._stages[stage] for stage in stages_by_rank(self.plan)[pipeline]]
        return sum(s[0] + s[2] for s in held), sum(s[1] + s[3] for s in held)

    @property
    def transfer(self) -> float:
        """The activations of one micro-batch to the next pipeline rank."""
        layout = self.plan.layout
        if layout.pipeline == 1:
            return 0.0
        along = layout.tensor if self.plan.sequence_parallel else 1
        link = self.machine.link_between(layout.peers(0, "pipeline"))
        return send_seconds(self._activation_bytes / along, link)

    def data_collectives(self, held: MemoryEstimate) -> float:
        """The reduction of gradients, and the gathering of weights that ZeRO asks for."""
        plan = self.plan
        degree = plan.layout.replicas
        link = self.machine.link_between(plan.layout.peers(0, "data", "context"))
        if degree == 1:
            return 0.0
        weights = held.weights * (degree if plan.zero == 3 else 1)
        elements = weights / BYTES[plan.precision.weights]
        gradients = elements * BYTES[plan.precision.reduction]
        if plan.zero == 0:
            return all_reduce_seconds(gradients, degree, link)
        # Stage 3 has no weights between uses: they are gathered for each forward and for each backward.
        gathers = 2 * plan.batch.micro_batches(plan.layout) if plan.zero == 3 else 1
        return all_gather_seconds(gradients, degree, link) + gathers * all_gather_seconds(
            weights, degree, link
        )

    def optimizer(self, held: MemoryEstimate) -> float:
        """State read and written once, at the memory's bandwidth."""
        return 2 * (held.optimizer + held.gradients + held.weights) / self.machine.memory_bandwidth

    @property
    def _activation_bytes(self) -> float:
        plan = self.plan
        return plan.batch.micro * plan.local_sequence * plan.model.hidden * BYTES[plan.precision.weights]

    def _of_stage(self, stage: int) -> tuple[float, float, float, float]:
        plan, layout = self.plan, self.plan.layout
        speed = self.machine.flops_per_second(plan.precision.weights, layout.world_size)
        flops = stage_flops(plan, stage)
        layers = layers_by_stage(plan)[stage]
        # Reading the weights bounds a stage of few positions from below.
        elements = layer_elements(plan.model, layout.tensor) * len(layers)
        reading = elements * BYTES[plan.precision.weights] / self.machine.memory_bandwidth
        # Heads and columns are shared by tensor ranks, positions by context ranks.
        sharing = layout.tensor * layout.context
        forward = max(flops.forward / sharing / speed, reading)
        backward = max((flops.backward + flops.recompute) / sharing / speed, 2 * reading)
        link = self.machine.link_between(layout.peers(0, "tensor"))
        # Sequence parallel or not: a reduce-scatter and an all-gather move what one all-reduce moves.
        one = all_reduce_seconds(self._activation_bytes, layout.tensor, link)
        again = sum(plan.recompute.mode_of(layer) == "layer" for layer in layers)
        ends = (stage == 0) + (stage == layout.stages - 1)
        forward_tensor = (2 * len(layers) + (stage == 0)) * one
        backward_tensor = (2 * len(layers) + 2 * again + (ends if stage else 0)) * one
        return forward, forward_tensor, backward, backward_tensor


def estimate(plan: Plan, machine: Machine, *, method: Method = "simulated") -> Estimate:
    """Price a legal plan. "closed form" replaces the simulation: exact for equal stages, and faster.

    Raises ConfigError if the machine has too few devices.
    """
    problems = machine.problems(plan.layout.world_size)
    if problems:
        raise ConfigError("\n".join(problems))
    ranks = plan.layout.world_size
    worst, memory = worst_rank(plan)
    durations = Durations(plan, machine)
    parts = _parts(plan, durations, memory, machine.crowding(ranks), method)
    devices = ranks if machine.sharing == "exclusive" else machine.devices
    peak = float(getattr(machine.peak, plan.precision.weights)) * devices
    busy = parts.compute + parts.tensor_collectives
    return Estimate(
        parts=parts,
        tokens=plan.tokens(plan.batch.sequences),
        ranks=ranks,
        model_flops=model_flops(plan.model, plan.batch.sequences).total,
        hardware_flops=hardware_flops(plan).total,
        peak_flops_per_second=peak,
        bubble_fraction=(parts.bubble + parts.pipeline_transfers) / busy,
        worst=worst,
        memory=memory,
        memory_limit=machine.memory_per_rank(ranks),
    )


def planned_timeline(plan: Plan, machine: Machine, *, sequences: int | None = None) -> Timeline:
    """The schedule of a step with the seconds estimated for its actions, as if no rank shared a device."""
    durations = Durations(plan, machine)
    return simulate(plan.schedule_table(sequences), durations.action, durations.transfer)


def _parts(plan: Plan, durations: Durations, memory: MemoryEstimate, crowd: float, method: Method) -> Parts:
    micro_batches = plan.batch.micro_batches(plan.layout)
    trips = [durations.round_trip(p) for p in range(plan.layout.pipeline)]
    compute, tensor = (micro_batches * share for share in max(trips, key=sum))
    pipeline = _pipeline_seconds(plan, durations, trips, method)
    without, with_transfers = pipeline(0.0), pipeline(durations.transfer)
    # Ranks that share devices fill each other's bubbles, but together need all their work done.
    shared = crowd * micro_batches * sum(map(sum, trips)) / len(trips)
    if shared > with_transfers:
        compute, tensor = (crowd * micro_batches * sum(t[i] for t in trips) / len(trips) for i in (0, 1))
        without = with_transfers = shared
    return Parts(
        compute=compute,
        tensor_collectives=tensor,
        bubble=max(0.0, without - compute - tensor),
        pipeline_transfers=with_transfers - without,
        data_collectives=crowd * durations.data_collectives(memory),
        optimizer=crowd * durations.optimizer(memory),
    )


def _pipeline_seconds(
    plan: Plan, durations: Durations, trips: list[tuple[float, float]], method: Method
) -> Callable[[float], float]:
    """Seconds of all micro-batches, as a function of the seconds of a transfer."""
    if method == "simulated":
        schedule = plan.schedule_table()
        return lambda transfer: simulate(schedule, durations.action, transfer).duration
    layout, times = plan.layout, [sum(trip) for trip in trips]
    steady = (plan.batch.micro_batches(layout) - 1 / layout.chunks) * max(times)
    hops = 2 * (layout.pipeline - 1)
    return lambda transfer: steady + sum(times) / layout.chunks + hops * transfer
