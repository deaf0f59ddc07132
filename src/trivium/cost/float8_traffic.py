"""Bytes that 8-bit products add to the messages of a rank: largest values, on which ranks agree before they scale.

Legend: T tokens, I inputs, O outputs of a linear layer on this rank.
"""

from collections import Counter
from collections.abc import Mapping
from math import prod

from trivium.plan.buckets import BucketRow
from trivium.plan.float8 import scaled_weights
from trivium.plan.layers.part import Parameter
from trivium.plan.layout import Coordinate
from trivium.plan.parameters import local_shape, parameters, stage_parameters
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES

OPERANDS = 3  # of a layer, of which delayed scaling remembers the largest values
FORWARD, OF_INPUTS, OF_WEIGHTS = ["TI", "OI"], ["TO", "IO"], ["OT", "IT"]  # rows and sum of both operands


def add_float8(traffic: Mapping[str, Counter[str]], plan: Plan, at: Coordinate, micro_batches: int) -> None:
    """Add the messages of one step, of delayed scaling those of a step after the first one. Tokens of experts are
    counted as if each rank of experts had as many."""
    float8, wide = plan.precision.float8, wide_bytes(plan)
    if float8 is None or float8.recipe == "block":
        return
    if float8.recipe == "delayed":
        every = scaled_weights(float8, parameters(plan.model), plan.model.layers)
        for axis in ("replicas", "tensor", "pipeline"):
            if getattr(plan.layout, axis) > 1:
                traffic[axis]["all_reduce"] += len(every) * OPERANDS * wide
        return
    for stage in plan.stages_of(at.pipeline):
        times = plan.taken(at.pipeline, stage, micro_batches)
        rows = stage_parameters(plan.model, plan.layers_of(stage), first=False, last=False)
        for p in scaled_weights(float8, rows, plan.model.layers):
            for axis, elements in _agreed(plan, p).items():
                traffic[axis]["all_reduce"] += times * elements * wide


def wide_bytes(plan: Plan) -> int:
    """Return the bytes of a largest value."""
    return max(4, BYTES[plan.precision.weights])


def gathered_amaxes(plan: Plan, row: BucketRow) -> int:
    """Return the largest values on which ranks agree before a bucket is gathered in 8 bits: one for each matrix."""
    shapes = (local_shape(item.parameter, plan.model, plan.layout) for item in row.items)
    both = zip(row.items, shapes, strict=True)
    return sum(shape[0] if item.parameter.by_expert else 1 for item, shape in both)


def _agreed(plan: Plan, p: Parameter) -> Counter[str]:
    """Return the largest values, by axis, that a rank agrees on for the products of one micro-batch with a weight."""
    float8, layout = plan.precision.float8, plan.layout
    assert float8 is not None, "only 8-bit products have scales"
    shape = local_shape(p, plan.model, layout)
    matrices = shape[0] if p.by_expert else 1
    own_positions = p.split is None and plan.sequence_parallel
    tokens = plan.local_sequence * plan.batch.micro // (layout.tensor if own_positions else 1)
    assert isinstance(p.owner, int), "linear layers are in blocks"
    experts = plan.model.form_of(p.owner).experts if p.by_expert else None
    rows_of = {  # of all matrices
        "T": tokens * (experts.chosen if experts else 1),
        "I": matrices * shape[-1],
        "O": prod(shape[:-1]),
    }
    axes = {
        "T": ("context", *["tensor"] * own_positions),
        "I": ("tensor",) * p.splits_inputs,
        "O": ("tensor",) * p.splits_outputs,
    }
    again = plan.recompute.mode_of(p.owner) == "layer"
    operands = FORWARD * (1 + again) + OF_INPUTS
    if p.splits_inputs and layout.tensor > 1 and not p.by_expert:  # each chunk scales the weight again
        share = plan.local_sequence // (layout.tensor if plan.sequence_parallel else 1)
        operands += FORWARD[1:] * (min(plan.row_chunks, share) - 1) * (1 + again)
    operands += OF_WEIGHTS * (plan.optimizer.trains(p) and float8.weight_gradients)
    found: Counter[str] = Counter()
    for operand in operands:
        rows, over = operand[0], operand if float8.recipe == "tensor" else operand[1]
        for axis in {axis for name in over for axis in axes[name] if getattr(layout, axis) > 1}:
            found[axis] += matrices if float8.recipe == "tensor" else rows_of[rows]
    return found
