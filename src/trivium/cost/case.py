"""A plan as numbers, for arithmetic over one plan or thousands at once.

Every field is a number, or a NumPy array with one entry per plan; all broadcast together, and so do the results.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from trivium.optim.rule import rule_named
from trivium.plan.layers.embedding import Embedding
from trivium.plan.layers.head import Head
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.part import Number, Place, entries
from trivium.plan.matrices import update_flops
from trivium.plan.model_shape import ModelShape
from trivium.plan.optimizer import Optimizer
from trivium.plan.parameters import count, parameters
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES, Precision
from trivium.plan.schedule import SPLIT_SCHEDULES, is_split

# Recompute modes as numbers: "every" of them keeps its input only.
NONE, ATTENTION, LAYER = 0, 1, 2
MODES = {"none": NONE, "attention": ATTENTION, "layer": LAYER}
PartT = TypeVar("PartT")
Shares = Sequence[tuple[PartT, Number]]  # different parts, and the share of each; together they are 1


@dataclass(frozen=True, kw_only=True)
class Case(Place):
    """What costs depend on. Counts are of the whole model or run unless they say otherwise.

    different_layers: the model's different layers, with the share of each among `layers`. embeddings, heads: usually
    one, of share 1. vocabulary: rows with padding.
    micro: sequences of a micro-batch. micro_batches: of one replica in a step.
    scores_kept: attention keeps its scores (unfused), instead of computing them again in the backward (flash).
    puts_off: weight gradients are actions of their own. row_chunks: of a row-split product, each reduced beside the
    next. ends_together: the first and the last stage are on one rank of the pipeline. turns: every rank of it has the
    head, for some of the micro-batches. fp16: weights are, not bf16.
    function_again: the backward computes again what the activation function of the feed-forward half gives.
    *_bytes: of one element.
    compiled: blocks, loss and an accelerator's update are. one_graph: and nothing in a layer is left out of it.
    recorded: steps are replayed, where a device can.
    trained: the share of the parameters that is not frozen. states: numbers that the optimizer keeps of each, in the
    dtype of the masters. matrices: the share of the trained parameters whose rule updates matrices; matrix_flops: what
    that takes for the whole model.
    ends_lighter: layers fewer on the first and the last stage, where embedding and logits count as layers.
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
    ends_together: Number = 0  # 0 or 1
    turns: Number = 0  # 0 or 1
    fp16: Number = 0  # 0 or 1
    shards: Number = 0  # of a copy of what ZeRO shards; 0: as many as replicas
    compiled: Number = 0  # 0 or 1
    recorded: Number = 0  # 0 or 1
    one_graph: Number = 0  # 0 or 1
    trained: Number = 1.0
    states: Number = 2.0
    matrices: Number = 0.0
    matrix_flops: Number = 0.0

    def of_a_layer(self, value: Callable[[Layer], Number]) -> Number:
        """Return the mean of `value` over the model's layers."""
        return mean(self.different_layers, value)

    @property
    def numbers(self) -> list[Number]:
        """The fields that are numbers or arrays, without the parts."""
        return [value for value in vars(self).values() if not isinstance(value, tuple)]

    @property
    def replicas(self) -> Number:
        """Ranks that hold the same weights."""
        return self.data * self.context

    @property
    def sharers(self) -> Number:
        """Replicas that share one copy of what ZeRO shards."""
        return np.where(np.asarray(self.shards) > 0, self.shards, self.replicas)

    @property
    def copies(self) -> Number:
        """How many copies there are of the state that ZeRO shards."""
        return self.replicas / self.sharers

    @property
    def ranks(self) -> Number:
        """Ranks of the run."""
        return self.tensor * self.pipeline * self.replicas


def mean(parts: Shares[PartT], value: Callable[[PartT], Number]) -> Number:
    """Return the mean of `value` over parts, weighted by their shares; parts with one value have exactly that mean."""
    first = value(parts[0][0])
    return sum((share * (value(part) - first) for part, share in parts[1:]), first)


def case_of(plan: Plan) -> Case:
    """The numbers of a plan, in a step of the full batch."""
    layout = plan.layout
    return Case(
        **model_numbers(plan.model),
        vocabulary=plan.model.padded_vocabulary(layout.tensor),
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        chunks=layout.chunks,
        data=layout.data,
        context=layout.context,
        shards=layout.shards or 0,
        micro=plan.batch.micro,
        micro_batches=plan.batch.micro_batches(layout),
        recompute=MODES[plan.recompute.mode],
        recompute_every=plan.recompute.every,
        sequence_parallel=int(plan.sequence_parallel),
        zero=plan.zero,
        weight_bytes=BYTES[plan.precision.weights],
        gradient_bytes=BYTES[plan.gradient_dtype],
        reduction_bytes=BYTES[plan.reduction_dtype],
        master_bytes=BYTES[plan.precision.masters],
        ring=int(plan.context_attention == "ring"),
        row_chunks=plan.row_chunks,
        function_again=int(plan.recompute.activation_function),
        ends_together=int(not plan.ends_apart),
        turns=int(plan.heads_in_turns),
        fp16=int(plan.precision.weights == "fp16"),
        puts_off=puts_off(plan),
        compiled=int(plan.compiled),
        recorded=int(plan.cuda_graphs),
        **optimizer_numbers(plan.model, plan.optimizer, plan.precision),
        one_graph=int(
            plan.compiled
            and layout.tensor == layout.context == 1
            and plan.model.documents == "joined"
            and not puts_off(plan)
        ),
    )


def optimizer_numbers(model: ModelShape, optimizer: Optimizer, precision: Precision) -> dict[str, Any]:
    """The fields of a case that the groups of parameters decide, as means over the model."""
    if not optimizer.groups:
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


def state_bytes(group: int, optimizer: Optimizer, masters: int) -> int:
    """Bytes of an element's states under the rule of a group. masters: of a number in the dtype of the masters."""
    states = rule_named(optimizer.every[group].rule).states
    return sum(BYTES[state.dtype] if state.dtype else masters for state in states)


def puts_off(plan: Plan) -> int:
    """Whether weight gradients are actions of their own."""
    given = plan.schedule == "given"
    return int(is_split(plan.schedule_table()) if given else plan.schedule in SPLIT_SCHEDULES)


def model_numbers(model: ModelShape) -> dict[str, Any]:
    """The fields of a case that a model alone decides."""
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
    """The entries `which` (a mask or indices) of a case whose fields may be arrays."""
    return Case(**{name: entries(value, which) for name, value in vars(case).items()})
