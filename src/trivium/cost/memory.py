"""Bytes a rank holds, by category.

Weights, gradients and optimizer state are exact: counted from the table of parameters, with the padding of the
flat buffers. Activations are an analytic figure: what each layer keeps for its backward (activations.py), times the
micro-batches in flight, which are read off the schedule table. Allocator, libraries and communication buffers are
not counted.
"""

from dataclasses import dataclass
from functools import lru_cache

from trivium.cost.activations import Counting, layer_bytes, logits_bytes, stage_ends_bytes
from trivium.cost.buffers import buffer_elements, layer_elements
from trivium.cost.stages import layers_by_stage, stages_by_rank
from trivium.plan.layout import Coordinate
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES, Dtype, Precision
from trivium.plan.schedule import Op, Row, ScheduleName, make_schedule


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one rank at the worst moment of a step.

    activations: kept for the backward, logits included. logits: the part of `activations` that is logits.
    recomputed: what the backward of one recomputed layer fills again. gathered: the layer that ZeRO stage 3 puts
    together to compute with.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    recomputed: int = 0
    gathered: int = 0
    logits: int = 0

    @property
    def total(self) -> int:
        state = self.weights + self.gradients + self.optimizer
        return state + self.activations + self.recomputed + self.gathered

    def categories(self) -> dict[str, int]:
        """The four that the runtime counts, under the names it uses."""
        return {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
        }


def memory_of_rank(plan: Plan, at: Coordinate, *, counting: Counting = "runtime") -> MemoryEstimate:
    """Bytes of the rank at `at`, in a step of the full batch.

    counting: "runtime", what our trainer holds; "paper": MT-NLG section 2 counts a gradient in the dtype of the
    weights beside the fp32 one (20 bytes per parameter in bf16, where we hold 18), and activations as published.
    """
    data, precision, zero = plan.layout.replicas, plan.precision, plan.zero
    whole = sum(buffer_elements(plan, at.pipeline))
    owned = whole // data  # each buffer is padded to a multiple of `data`
    weight_bytes = BYTES[precision.weights]
    activations, logits = peak_activation_bytes(plan, at.pipeline, counting=counting)
    gathered = largest_layer_elements(plan) * weight_bytes if zero == 3 and data > 1 else 0
    return MemoryEstimate(
        weights=weight_bytes * (owned if zero >= 3 else whole),
        gradients=gradient_bytes(precision, counting) * (owned if zero >= 2 else whole),
        optimizer=optimizer_bytes(precision) * (owned if zero >= 1 else whole),
        activations=activations,
        recomputed=recomputed_bytes(plan, at.pipeline, counting=counting),
        gathered=gathered,
        logits=logits,
    )


def worst_rank(plan: Plan) -> tuple[Coordinate, MemoryEstimate]:
    """The rank that holds most; ranks that differ only in tensor or data hold the same."""
    ranks = [Coordinate(pipeline, 0, 0) for pipeline in range(plan.layout.pipeline)]
    estimates = [(at, memory_of_rank(plan, at)) for at in ranks]
    return max(estimates, key=lambda found: found[1].total)


def gradient_bytes(precision: Precision, counting: Counting = "runtime") -> int:
    """Per parameter: accumulated over micro-batches, and in the paper's counting a narrow one besides."""
    narrow = BYTES[precision.weights] if counting == "paper" and precision.has_master else 0
    return BYTES[precision.accumulation] + narrow


def optimizer_bytes(precision: Precision) -> int:
    """Per parameter: the two moments of Adam, and master weights where the weights are narrower."""
    return BYTES[precision.masters] * (3 if precision.has_master else 2)


def bytes_per_parameter(precision: Precision, counting: Counting = "runtime") -> int:
    """Weights, gradients and optimizer state of one parameter that nobody shards."""
    return BYTES[precision.weights] + gradient_bytes(precision, counting) + optimizer_bytes(precision)


def checkpoint_bytes(model: ModelShape, sequences: int, dtype: Dtype) -> int:
    """The inputs of all layers for so many sequences: what full recomputation keeps of a batch."""
    return sequences * model.layers * model.sequence * model.hidden * BYTES[dtype]


def predicted_memory(plan: Plan) -> dict[int, dict[str, int]]:
    """Bytes of every rank by the categories the runtime counts, as `training.job.start` takes them."""
    by_stage = [memory_of_rank(plan, Coordinate(p, 0, 0)).categories() for p in range(plan.layout.pipeline)]
    ranks = range(plan.layout.world_size)
    return {rank: by_stage[plan.layout.coordinate(rank).pipeline] for rank in ranks}


def largest_layer_elements(plan: Plan) -> int:
    """Elements of the largest unit that ZeRO stage 3 gathers: a layer, or the vocabulary."""
    model, tensor = plan.model, plan.layout.tensor
    return max(layer_elements(model, tensor), model.padded_vocabulary(tensor) // tensor * model.hidden)


def peak_activation_bytes(plan: Plan, pipeline: int, *, counting: Counting = "runtime") -> tuple[int, int]:
    """Largest bytes of activations the rank keeps for backwards at once, and the logits among them."""
    kept = [_stage_bytes(plan, stage, counting) for stage in stages_by_rank(plan)[pipeline]]
    micro_batches = plan.batch.micro_batches(plan.layout)
    if plan.schedule == "given":
        counts = _largest(plan.schedule_table()[pipeline])
    else:
        counts = peak_counts(plan.schedule, plan.layout.pipeline, micro_batches, plan.layout.chunks)[pipeline]
    peaks = [
        (sum(n * sum(each) for n, each in pairs), sum(n * each[1] for n, each in pairs))
        for pairs in (list(zip(held, kept, strict=True)) for held in counts)
    ]
    return max(peaks)


def recomputed_bytes(plan: Plan, pipeline: int, *, counting: Counting = "runtime") -> int:
    """What recomputing a layer adds, for one micro-batch, to what was kept of it."""
    layers = [layer for stage in stages_by_rank(plan)[pipeline] for layer in layers_by_stage(plan)[stage]]
    modes = {plan.recompute.mode_of(layer) for layer in layers}
    whole = layer_bytes(plan, "none", counting=counting)
    return max((whole - layer_bytes(plan, mode, counting=counting) for mode in modes), default=0)


@lru_cache(maxsize=256)
def peak_counts(
    name: ScheduleName, pipeline: int, micro_batches: int, chunks: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """For each rank, the largest sets of activations it holds: micro-batches in flight by its own stages.

    Only sets that no other set contains are kept. 1F1B reaches its peak within the first groups of micro-batches
    (tests/cost/memory_test.py), so a long step is as good as a shorter one.
    """
    if name != "gpipe":
        micro_batches = min(micro_batches, 3 * pipeline)
    schedule = make_schedule(name, pipeline=pipeline, micro_batches=micro_batches, chunks=chunks)
    return tuple(_largest(row) for row in schedule)


def _largest(row: Row) -> tuple[tuple[int, ...], ...]:
    stages = sorted({action.stage for action in row})
    held, seen = dict.fromkeys(stages, 0), set()
    for action in row:
        # An activation is needed until its weight gradients are there, which may be an action of their own.
        held[action.stage] += (action.op is Op.FORWARD) - (action.op in (Op.BACKWARD, Op.WEIGHT_GRADIENT))
        if action.op is Op.FORWARD:
            seen.add(tuple(held.values()))
    return tuple(
        a
        for a in sorted(seen)
        if not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for b in seen)
    )


def _stage_bytes(plan: Plan, stage: int, counting: Counting) -> tuple[int, int]:
    """What a stage keeps of one micro-batch: layers and ends, and logits."""
    last = stage == plan.layout.stages - 1
    modes = (plan.recompute.mode_of(layer) for layer in layers_by_stage(plan)[stage])
    layers = sum(layer_bytes(plan, mode, counting=counting) for mode in modes)
    ends = stage_ends_bytes(plan, first=stage == 0, last=last, counting=counting)
    return layers + ends, logits_bytes(plan, counting=counting) if last else 0
