"""The inputs of the cost model: one plan, or thousands at once, as numbers.

Every field is a number, or a NumPy array with one entry per plan; all broadcast together, and so do the results.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from trivium.objectives.routers import counts_first
from trivium.optim.rule import rule_named
from trivium.plan.float8 import is_of_linear, scaled_weights
from trivium.plan.layers.embedding import Embedding
from trivium.plan.layers.head import Head
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.part import Number, Place, entries
from trivium.plan.matrices import update_flops
from trivium.plan.messages import Messages, ratio
from trivium.plan.model_shape import ModelShape
from trivium.plan.optimizer import Optimizer
from trivium.plan.parameters import count, parameters
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES, Dtype, Precision, has_one_gradient
from trivium.plan.schedule import SPLIT_SCHEDULES, is_split

# Recompute modes as numbers. A layer in mode LAYER keeps only its input.
NONE, ATTENTION, LAYER = 0, 1, 2
MODES = {"none": NONE, "attention": ATTENTION, "layer": LAYER}
PartT = TypeVar("PartT")
Shares = Sequence[tuple[PartT, Number]]  # distinct parts and their shares, which add up to 1


@dataclass(frozen=True, kw_only=True)
class Case(Place):
    """Everything that costs depend on. Counts are totals of the model or the run unless stated otherwise.

    different_layers: the model's distinct layers and the share of each among `layers`. embeddings, heads: usually one
    with share 1. vocabulary: rows including padding. micro: sequences per micro-batch. micro_batches: per replica and
    step. scores_kept: attention stores its scores (unfused) instead of recomputing them in the backward (flash).
    puts_off: weight gradients are deferred to actions of their own. row_chunks: chunks of a row-parallel product, each
    reduced while the next is computed. in_ring: activations go round the tensor ranks in pieces. ends_together: one
    pipeline rank has the first and the last stage. turns: round-robin head, which every pipeline rank has for some
    micro-batches. fp16: 16-bit weights are fp16, not bf16.
    function_again: the backward recomputes the activation function. *_bytes: bytes per element. compiled: blocks, loss
    and GPU optimizer step are compiled. one_graph: a compiled layer is a single graph. recorded: steps are replayed as
    CUDA graphs where the device supports it. trained: fraction of the parameters that is not frozen. states: optimizer
    states per trained parameter, in elements of the masters' dtype. matrices: fraction of the trained parameters that a
    matrix rule updates. matrix_flops: FLOPs of these updates for the whole model. ends_lighter: layers fewer on the
    first and on the last stage, for partitions that count embedding and logits as layers. *_ratio: bytes of encoded
    messages over those of exact ones: of activations between tensor ranks, of gradients, of gathered weights.
    forward_passes: passes of the whole batch before a step that score its targets.
    counting_passes: those that only count the loads of experts.
    float8: the share of the weights of linear layers whose products have 8-bit operands; float8_weight_gradients,
    float8_gathered, float8_codes: 1 where those of weight gradients do, where ZeRO stage 3 gathers these weights in 8
    bits, and where kernels multiply the codes.
    state_away, activations_away: shares of the optimizer state, and of the layers of a stage whose activations, that
    the host keeps.
    """

    different_layers: Shares[Layer]
    embeddings: Shares[Embedding]
    heads: Shares[Head]
    layers: Number
    hidden: Number
    tied: Number  # 0 or 1
    pipeline: Number
    chunks: Number
    data: Number
    micro_batches: Number
    recompute: Number  # NONE, ATTENTION, LAYER
    recompute_every: Number
    zero: Number
    scores_kept: Number = 0
    gradient_bytes: Number = 4
    reduction_bytes: Number = 4
    ends_lighter: Number = 0
    puts_off: Number = 0  # 0 or 1
    row_chunks: Number = 1
    in_ring: Number = 0  # 0 or 1
    ends_together: Number = 0  # 0 or 1
    turns: Number = 0  # 0 or 1
    fp16: Number = 0  # 0 or 1
    shards: Number = 0  # replicas that share one copy of ZeRO's state; 0: all
    compiled: Number = 0  # 0 or 1
    recorded: Number = 0  # 0 or 1
    one_graph: Number = 0  # 0 or 1
    trained: Number = 1.0
    states: Number = 2.0
    matrices: Number = 0.0
    matrix_flops: Number = 0.0
    float8: float = 0.0
    float8_weight_gradients: int = 1
    float8_gathered: int = 0
    float8_codes: int = 1
    tensor_ratio: Number = 1.0
    gradient_ratio: Number = 1.0
    weight_ratio: Number = 1.0
    state_away: Number = 0.0
    activations_away: Number = 0.0
    forward_passes: Number = 0
    counting_passes: Number = 0

    def of_a_layer(self, value: Callable[[Layer], Number]) -> Number:
        """Return the mean of `value` over the model's layers."""
        return mean(self.different_layers, value)

    @property
    def numbers(self) -> list[Number]:
        """The fields that are numbers or arrays, without layers, embeddings and heads."""
        return [value for value in vars(self).values() if not isinstance(value, tuple)]

    @property
    def replicas(self) -> Number:
        """Number of ranks that hold the same weights."""
        return self.data * self.context

    @property
    def sharers(self) -> Number:
        """Size of the sharding group: replicas that share one copy of the state that ZeRO shards."""
        return np.where(np.asarray(self.shards) > 0, self.shards, self.replicas)

    @property
    def copies(self) -> Number:
        """Number of copies of the state that ZeRO shards."""
        return self.replicas / self.sharers

    @property
    def expert_sharers(self) -> Number:
        """Size of the sharding group of experts: those of `sharers` that hold the same experts."""
        return self.sharers / np.asarray(self.expert)

    @property
    def ranks(self) -> Number:
        """Number of ranks of the run."""
        return self.tensor * self.pipeline * self.replicas


def mean(parts: Shares[PartT], value: Callable[[PartT], Number]) -> Number:
    """Return the mean of `value` over parts, weighted by their shares; parts with one value have exactly that mean."""
    first = value(parts[0][0])
    return sum((share * (value(part) - first) for part, share in parts[1:]), first)


def case_of(plan: Plan, forward_passes: int = 0) -> Case:
    """Return the case of a plan for a step with the full batch, which `forward_passes` passes precede."""
    layout = plan.layout
    return case_from(
        plan.model,
        plan.precision,
        plan.optimizer,
        **message_ratios(plan.messages, plan.precision),
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        chunks=layout.chunks,
        data=layout.data,
        context=layout.context,
        expert=layout.expert,
        shards=layout.shards or 0,
        micro=plan.batch.micro,
        micro_batches=plan.batch.micro_batches(layout),
        recompute=MODES[plan.recompute.mode],
        recompute_every=plan.recompute.every,
        sequence_parallel=int(plan.sequence_parallel),
        zero=plan.zero,
        ring=int(plan.context_attention == "ring"),
        row_chunks=plan.row_chunks,
        in_ring=int(plan.tensor_ring),
        function_again=int(plan.recompute.activation_function),
        ends_together=int(not plan.ends_apart),
        turns=int(plan.heads_in_turns),
        puts_off=puts_off(plan),
        compiled=int(plan.compiled),
        recorded=int(plan.cuda_graphs),
        state_away=plan.offload.optimizer,
        activations_away=plan.offload.activations,
        forward_passes=forward_passes,
    )


def case_from(model: ModelShape, precision: Precision, optimizer: Optimizer, **chosen: Any) -> Case:
    """Return the case of one plan or of many with the same model, precision and optimizer.

    chosen: the fields of the case that follow from the other settings, each a number or an array.
    """
    case = Case(
        **model_numbers(model),
        **optimizer_numbers(model, optimizer, precision),
        **float8_numbers(model, precision),
        **chosen,
        vocabulary=model.padded_vocabulary(chosen["tensor"]),
        fp16=int(precision.weights == "fp16"),
        weight_bytes=BYTES[precision.weights],
        master_bytes=BYTES[precision.masters],
    )
    once = has_one_gradient(case.ranks, case.micro_batches)
    whole = (np.asarray(case.tensor) == 1) & (np.asarray(case.context) == 1) & (np.asarray(case.puts_off) == 0)

    def bytes_of(dtype: Callable[..., Dtype]) -> Number:
        return np.where(once, BYTES[dtype(once=True)], BYTES[dtype(once=False)])

    return replace(
        case,
        gradient_bytes=bytes_of(precision.gradients_of),
        reduction_bytes=bytes_of(precision.reduction_of),
        counting_passes=1 * counts_first(model, case.pipeline * case.chunks, case.micro_batches),
        one_graph=whole * int(model.documents == "joined") * case.compiled,
    )


def message_ratios(messages: Messages, precision: Precision) -> dict[str, float]:
    """Return the fields of a case that depend on the encodings of messages."""
    narrow, reduction = BYTES[precision.weights], BYTES[precision.reduction_of(once=False)]
    return {
        "tensor_ratio": ratio(messages.tensor, narrow),
        "gradient_ratio": ratio(messages.gradients, reduction),
        "weight_ratio": ratio(messages.weights, narrow),
    }


def optimizer_numbers(model: ModelShape, optimizer: Optimizer, precision: Precision) -> dict[str, Any]:
    """Return the fields of a case that depend on the optimizer's parameter groups, as means over the model."""
    if not optimizer.groups and not model.adapters:
        return {}
    groups = {row: optimizer.number_of(row.name) for row in parameters(model) if optimizer.trains(row)}
    trained, masters = sum(row.elements for row in groups), BYTES[precision.masters]
    kept = sum(row.elements * state_bytes(group, optimizer, masters) for row, group in groups.items())
    rules = [group.made({}) for group in optimizer.every]
    whole = {row: rules[group] for row, group in groups.items() if rules[group].unit == "matrix"}
    return {
        "trained": trained / count(model),
        "states": kept / (trained * masters),
        "matrices": sum(row.elements for row in whole) / trained,
        "matrix_flops": sum(update_flops(rule, row) for row, rule in whole.items()),
    }


def float8_numbers(model: ModelShape, precision: Precision) -> dict[str, Any]:
    """Return the fields of a case that depend on the 8-bit products."""
    if precision.float8 is None:
        return {}
    rows = parameters(model)
    scaled = sum(p.elements for p in scaled_weights(precision.float8, rows, model.layers))
    return {
        "float8": scaled / sum(p.elements for p in rows if is_of_linear(p)),
        "float8_weight_gradients": int(precision.float8.weight_gradients),
        "float8_gathered": int(precision.float8.gathered),
        "float8_codes": int(precision.float8.recipe != "block"),
    }


def state_bytes(group: int, optimizer: Optimizer, masters: int) -> int:
    """Return the bytes of optimizer state per element under a group's rule. masters: bytes per element of the
    masters."""
    states = rule_named(optimizer.every[group].rule).states
    return sum(BYTES[state.dtype] if state.dtype else masters for state in states)


def puts_off(plan: Plan) -> int:
    """Return 1 if weight gradients are deferred to actions of their own, else 0."""
    given = plan.schedule == "given"
    return int(is_split(plan.schedule_table()) if given else plan.schedule in SPLIT_SCHEDULES)


def model_numbers(model: ModelShape) -> dict[str, Any]:
    """Return the fields of a case that depend only on the model."""
    return {
        "different_layers": tuple((layer, count / model.layers) for layer, count in model.counted_layers),
        "embeddings": ((model.embedding_part, 1.0),),
        "heads": ((model.head_part, 1.0),),
        "layers": model.layers,
        "hidden": model.hidden,
        "sequence": model.sequence,
        "tied": int(model.head == "tied"),
        "apart": int(model.documents == "apart"),
    }


def take(case: Case, which: Any) -> Case:
    """Return the entries `which` (a mask or indices) of a case whose fields may be arrays."""
    return Case(**{name: entries(value, which) for name, value in vars(case).items()})
