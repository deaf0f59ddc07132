"""Bytes that routers add to a rank's collectives: loads, and the forward pass that counts them first."""

from collections import Counter

from trivium.cost.ring_traffic import rings
from trivium.objectives.routers import counts_first
from trivium.plan.experts import Experts
from trivium.plan.layers.part import Place
from trivium.plan.layout import Coordinate
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES
from trivium.plan.schedule import Op
from trivium.plan.transfers import sends

COUNT_BYTES = 8  # loads are summed in fp64

Traffic = dict[str, Counter[str]]  # group -> collective -> bytes


def add_routers(traffic: Traffic, plan: Plan, at: Coordinate, micro_batches: int) -> None:
    """Add what the routers of a rank exchange in a step."""
    every = plan.model.experts_by_layer
    if not every:
        return
    of_step = len(every) * (max(e.count for e in every.values()) + 1)  # with the dropped choices of each layer
    for axis in ("tensor", "pipeline", "replicas"):
        if getattr(plan.layout, axis) > 1:
            traffic[axis]["all_reduce"] += of_step * COUNT_BYTES
    again = counts_first(plan.model, plan.stages, micro_batches)
    layers = [n for stage in plan.stages_of(at.pipeline) for n in plan.layers_of(stage)]
    for experts in (every[n] for n in layers if n in every and every[n].balance_loss):
        whole = experts.balance_scope == "global_batch"
        role, ranks = ("replicas", plan.layout.replicas) if whole else ("context", plan.layout.context)
        if ranks > 1:
            sets = 1 if whole and again else micro_batches
            traffic[role]["all_reduce"] += sets * _counts(plan, experts)
    if again:
        _add_counting(traffic, plan, at, micro_batches)
        pooled = next(e for e in every.values() if e.balance_loss)
        if pooled.balance_convention == "transformers" and plan.layout.pipeline > 1:
            traffic["pipeline"]["all_reduce"] += micro_batches * _counts(plan, pooled)


def _counts(plan: Plan, experts: Experts) -> int:
    """Return the bytes of the loads of one layer in one micro-batch."""
    return experts.count * (plan.batch.micro if experts.balance_scope == "sequence" else 1) * COUNT_BYTES


def _add_counting(traffic: Traffic, plan: Plan, at: Coordinate, micro_batches: int) -> None:
    """Add a forward pass of all micro-batches, without the head. `_gathers` in traffic.py has the weights at ZeRO
    stage 3."""
    positions = plan.local_sequence * plan.batch.micro
    column = positions * BYTES[plan.precision.weights]
    whole, tensor = plan.model.hidden * column, plan.layout.tensor
    forwards = tuple(tuple(a for a in row if a.op is Op.FORWARD) for row in plan.schedule_table())
    outside = whole // tensor if plan.sequence_parallel else whole
    traffic["pipeline"]["send"] += sends(forwards, at.pipeline) * outside
    for stage in plan.stages_of(at.pipeline):
        found: dict[str, Counter[str]] = {"tensor": Counter(), "context": Counter()}
        left, entered, summed = int(stage == 0) * whole, 0, 0
        for number in plan.layers_of(stage):
            layer = plan.model.each_layer[number]
            entering, leaving, for_weights, _ = layer.adapter_sums(plan.layout.expert)
            left += layer.wiring.regions * whole + leaving * column
            entered += (layer.entering + entering) * column
            summed += layer.sums * positions * BYTES[plan.precision.masters]
            summed += for_weights * max(4, BYTES[plan.precision.weights])
            if plan.layout.context > 1:
                found["context"] += _attended(plan, number, column)
        if tensor > 1 and plan.sequence_parallel:
            found["tensor"] += Counter(reduce_scatter=left, all_gather=entered // tensor, all_reduce=summed)
            found["tensor"].update(rings(plan, stage, backward=False).traffic(plan))
        elif tensor > 1:
            found["tensor"] += Counter(all_reduce=left + summed)
        for axis, counts in found.items():
            for name, count in counts.items():
                traffic[axis][name] += micro_batches * count


def _attended(plan: Plan, number: int, column: int) -> Counter[str]:
    """Return the context traffic of one micro-batch in one layer, forward."""
    total = Counter[str]()
    for half in plan.model.each_layer[number].halves.values():
        exchanged = half.exchanged(Place(tensor=plan.layout.tensor))
        if exchanged is not None and plan.context_attention == "ring":
            total["send"] += (plan.layout.context - 1) * int(exchanged.ring) * column
        elif exchanged is not None:
            total["all_to_all"] += (int(exchanged.into) + int(exchanged.out)) * column
    return total
