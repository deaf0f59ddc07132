"""Break a plan's price down by pipeline rank: seconds, memory over time, and traffic."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trivium.cost.activations import embedding_bytes, head_bytes, layer_bytes, logits_bytes
from trivium.cost.case import MODES, case_of
from trivium.cost.estimate import Estimate, estimate, planned_timeline
from trivium.cost.hardware import USABLE_MEMORY_SHARE, Machine
from trivium.cost.memory import MemoryEstimate, memory_of_rank
from trivium.cost.stack import own_stack
from trivium.cost.stages import layers_by_stage
from trivium.cost.timeline import Timeline
from trivium.cost.traffic import Traffic, step_traffic
from trivium.plan.layout import Coordinate
from trivium.plan.plan import Plan
from trivium.plan.schedule import Op
from trivium.plan.transfers import reader_of

FREES_ACTIVATIONS = (Op.BACKWARD, Op.WEIGHT_GRADIENT)


@dataclass(frozen=True)
class RankTime:
    """Seconds of a step on one pipeline rank while the pipeline runs. idle: the remaining time."""

    pipeline: int
    forward: float
    backward: float
    idle: float

    @property
    def busy(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class Breakdown:
    """An estimate and its parts by pipeline rank. timeline: the whole step. traffic: bytes that a rank sends."""

    plan: Plan
    machine: Machine
    price: Estimate
    timeline: Timeline
    times: tuple[RankTime, ...]
    memory: tuple[MemoryEstimate, ...]
    traffic: tuple[Traffic, ...]

    def tree(self) -> dict[str, Any]:
        """Return plain data."""
        ranks = zip(self.times, self.memory, self.traffic, strict=True)
        return {
            "estimate": self.price.tree(),
            "ranks": [
                {
                    "pipeline": time.pipeline,
                    "seconds": {name: getattr(time, name) for name in ("forward", "backward", "idle")},
                    "memory": {**held.categories(), "total": held.total},
                    "traffic": {axis: dict(moved) for axis, moved in handed.items() if moved},
                }
                for time, held, handed in ranks
            ],
        }


def break_down(
    plan: Plan, machine: Machine, share: float = USABLE_MEMORY_SHARE, forward_passes: int = 0, factor: float = 1.0
) -> Breakdown:
    """Return every part of a plan's price. share: fraction of a device's memory that the plan may use. forward_passes:
    before each step. factor: multiplies all seconds; measured over predicted ones, as calibrated on a finished run.

    Raises ConfigError if the machine has too few devices.
    """
    stack = own_stack(plan, machine, factor)
    timeline = planned_timeline(plan, machine, stack=stack)
    at = [Coordinate(pipeline, 0, 0) for pipeline in range(plan.layout.pipeline)]
    return Breakdown(
        plan=plan,
        machine=machine,
        price=estimate(plan, machine, stack=stack, share=share, forward_passes=forward_passes),
        timeline=timeline,
        times=rank_times(timeline),
        memory=tuple(memory_of_rank(plan, each) for each in at),
        traffic=tuple(step_traffic(plan, each) for each in at),
    )


def rank_times(timeline: Timeline) -> tuple[RankTime, ...]:
    """Return the working and idle seconds of every pipeline rank while the pipeline runs."""
    forward = [0.0] * len(timeline.busy)
    backward = [0.0] * len(timeline.busy)
    for action, (start, end) in timeline.spans.items():
        spent = forward if action.op is Op.FORWARD else backward
        spent[timeline.rank_of[action]] += end - start
    return tuple(
        RankTime(rank, f, b, timeline.duration - f - b)
        for rank, (f, b) in enumerate(zip(forward, backward, strict=True))
    )


class HeldByRank(NamedTuple):
    """Bytes of a pipeline rank.

    always: independent of time. opened: gradients from the start of the first backward. gradients: gradients from its
    end, including the additional bytes at the end of a step's only backward. kept: activations of one micro-batch by
    stage.
    """

    always: float
    opened: float
    gradients: float
    kept: Mapping[int, float]


def held_over_time(timeline: Timeline, rank: int, holds: HeldByRank) -> list[tuple[float, float]]:
    """Return pairs (seconds, bytes held from then on) of a pipeline rank, in order of time.

    The activations of a micro-batch are held from the start of its forward to the end of its backward. Gradients are
    held from the first backward on: `opened` bytes from its start, all of them from its end.
    """
    always, opened, gradients, kept = holds
    changes: dict[float, float] = defaultdict(float)
    own = {a: span for a, span in timeline.spans.items() if timeline.rank_of[a] == rank}
    backwards = [span for action, span in own.items() if action.op is not Op.FORWARD]
    if backwards:
        start, end = min(backwards)
        changes[start] += opened
        changes[end] += gradients - opened
    for action, (start, end) in own.items():
        if action.op is Op.FORWARD:
            changes[start] += kept[action.stage]
        elif action.op in FREES_ACTIVATIONS:
            changes[end] -= kept[action.stage]
    held, found = always, [(0.0, always)]
    for time in sorted(changes):
        held += changes[time]
        if time == found[-1][0]:
            found.pop()
        found.append((time, held))
    return found


def held_by_rank(plan: Plan, pipeline: int) -> HeldByRank:
    """Return the bytes of a pipeline rank. Transients count as always held, at their largest size."""
    held = memory_of_rank(plan, Coordinate(pipeline, 0, 0))
    kept = {stage: _stage_bytes(plan, stage) for stage in plan.stages_of(pipeline)}
    transient = held.working - held.activations
    # If gradients existed before, the activation peak is larger than the end of the last backward.
    more = replace(held, reduction=0).last - transient if held.opened < held.gradients else 0
    always = held.weights + held.optimizer + transient
    return HeldByRank(float(always), float(held.opened), float(held.gradients + more), kept)


def _stage_bytes(plan: Plan, stage: int) -> float:
    case, modes = case_of(plan), [plan.recompute.mode_of(layer) for layer in layers_by_stage(plan)[stage]]
    layers = sum(float(layer_bytes(case, MODES[mode])) for mode in modes)
    first = float(embedding_bytes(case)) if stage == 0 else 0.0
    last = float(head_bytes(case) + logits_bytes(case)) if stage == plan.last_stage else 0.0
    return layers + first + last


def handed_on(timeline: Timeline) -> list[tuple[int, int, float, float]]:
    """Return every tensor between pipeline ranks as (source, target, seconds when computed, seconds when used).

    The transfer happens in between; its exact time is unknown, because no rank waits for its end.
    """
    last = max(action.stage for action in timeline.spans)
    split = any(action.op is Op.INPUT_GRADIENT for action in timeline.spans)
    found = []
    for action, (_, end) in timeline.spans.items():
        reader = reader_of(action, last, split=split)
        if reader is not None and timeline.rank_of[reader] != timeline.rank_of[action]:
            used = timeline.spans[reader][0]
            found.append((timeline.rank_of[action], timeline.rank_of[reader], end, used))
    return found


def lanes(timeline: Timeline) -> list[list[tuple[str, int, int, float, float]]]:
    """Return the actions of each pipeline rank as (op, micro-batch, stage, start, end), in order of time."""
    found: list[list[tuple[str, int, int, float, float]]] = [[] for _ in timeline.busy]
    for action, (start, end) in sorted(timeline.spans.items(), key=lambda item: item[1]):
        found[timeline.rank_of[action]].append((action.op.value, action.micro_batch, action.stage, start, end))
    return found


def traffic_by_axis(traffic: Traffic) -> Mapping[str, int]:
    """Return the bytes that a rank passes to all collectives of each axis, without axes that have no traffic."""
    return {axis: sum(moved.values()) for axis, moved in traffic.items() if sum(moved.values())}
