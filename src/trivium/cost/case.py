"""A plan as numbers, for arithmetic over one plan or thousands at once.

Every field is a number, or a NumPy array with one entry per plan; all broadcast together, and so do the results.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.optim.rule import rule_named
from trivium.plan.matrices import update_flops
from trivium.plan.model_shape import ModelShape
from trivium.plan.optimizer import Optimizer
from trivium.plan.parameters import count, parameters
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES, Precision
from trivium.plan.schedule import SPLIT_SCHEDULES, is_split

Number = float | NDArray[Any]

# Recompute modes as numbers: "every" of them keeps its input only.
NONE, ATTENTION, LAYER = 0, 1, 2
MODES = {"none": NONE, "attention": ATTENTION, "layer": LAYER}


@dataclass(frozen=True)
class Case:
    """What costs depend on. Counts are of the whole model or run unless they say otherwise.

    gated: SwiGLU and RMSNorm (Llama) instead of GELU and LayerNorm. qkv_bias, qk_norm: of queries, keys and values
    alone, where others have none; on each head of queries and keys. over_heads: on all of them together. norm_after:
    half blocks end with their norm. vocabulary: rows with padding.
    micro: sequences of a micro-batch. micro_batches: of one replica in a step.
    scores_kept: attention keeps its scores (unfused), instead of computing them again in the backward (flash).
    ring: how context ranks attend (else Ulysses). apart: packed documents do not see each other. puts_off: weight
    gradients are actions of their own. row_chunks: of a row-split product, each reduced beside the next.
    ends_together: the first and the last stage are on one rank of the pipeline. turns: every rank of it has the head,
    for some of the micro-batches. fp16: weights are, not bf16.
    function_again: the backward computes again what the activation function of the feed-forward half gives.
    *_bytes: of one element. seen: of the pairs of positions that see each other without windows, the share that does,
    over the layers on average.
    compiled: blocks, loss and an accelerator's update are. one_graph: and nothing in a layer is left out of it.
    recorded: steps are replayed, where a device can.
    trained: the share of the parameters that is not frozen. states: numbers that the optimizer keeps of each, in the
    dtype of the masters. matrices: the share of the trained parameters whose rule updates matrices; matrix_flops: what
    that takes for the whole model.
    ends_lighter: layers fewer on the first and the last stage, where embedding and logits count as layers.
    """

    layers: Number
    hidden: Number
    heads: Number
    kv_heads: Number
    head_width: Number
    ffn: Number
    gated: Number  # 0 or 1
    sequence: Number
    vocabulary: Number
    tied: Number  # 0 or 1
    dropout: Number  # 0 or 1
    tensor: Number
    pipeline: Number
    chunks: Number
    data: Number
    context: Number
    micro: Number
    micro_batches: Number
    recompute: Number  # NONE, ATTENTION, LAYER
    recompute_every: Number
    sequence_parallel: Number  # 0 or 1
    zero: Number
    scores_kept: Number = 0
    weight_bytes: Number = 2
    gradient_bytes: Number = 4
    reduction_bytes: Number = 4
    master_bytes: Number = 4
    ends_lighter: Number = 0
    ring: Number = 1  # 0 or 1
    apart: Number = 0  # 0 or 1
    puts_off: Number = 0  # 0 or 1
    row_chunks: Number = 1
    function_again: Number = 0  # 0 or 1
    ends_together: Number = 0  # 0 or 1
    turns: Number = 0  # 0 or 1
    fp16: Number = 0  # 0 or 1
    qkv_bias: Number = 0  # 0 or 1
    qk_norm: Number = 0  # 0 or 1
    shards: Number = 0  # of a copy of what ZeRO shards; 0: as many as replicas
    over_heads: Number = 0  # 0 or 1
    norm_after: Number = 0  # 0 or 1
    seen: Number = 1.0
    compiled: Number = 0  # 0 or 1
    recorded: Number = 0  # 0 or 1
    one_graph: Number = 0  # 0 or 1
    trained: Number = 1.0
    states: Number = 2.0
    matrices: Number = 0.0
    matrix_flops: Number = 0.0

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
        """Of what ZeRO shards."""
        return self.replicas / self.sharers

    @property
    def ranks(self) -> Number:
        """Ranks of the run."""
        return self.tensor * self.pipeline * self.replicas

    @property
    def local_sequence(self) -> Number:
        """Positions of a sequence on one context rank."""
        return self.sequence / self.context

    @property
    def positions(self) -> Number:
        """Positions of a micro-batch on one context rank."""
        return self.micro * self.local_sequence

    @property
    def along(self) -> Number:
        """Tensor ranks that share the positions between regions."""
        return np.where(np.asarray(self.sequence_parallel) > 0, self.tensor, 1)

    @property
    def queries(self) -> Number:
        """Columns of all queries."""
        return self.heads * self.head_width

    @property
    def keys(self) -> Number:
        """Columns of all keys, and of all values."""
        return self.kv_heads * self.head_width


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


def optimizer_numbers(model: ModelShape, optimizer: Optimizer, precision: Precision) -> dict[str, float]:
    """The fields of a case that the groups of parameters decide, as means over the model."""
    if not optimizer.groups:
        return {}
    groups = {row: optimizer.number_of(row.name) for row in parameters(model) if optimizer.trains(row.name)}
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


def model_numbers(model: ModelShape) -> dict[str, float]:
    """The fields of a case that a model alone decides."""
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv,
        "head_width": model.head_columns,
        "ffn": model.ffn_width,
        "gated": int(model.family == "llama"),
        "qkv_bias": int(model.qkv_bias),
        "qk_norm": int(model.qk_norm == "each_head"),
        "over_heads": int(model.qk_norm == "all_heads"),
        "norm_after": int(model.norm_position == "after"),
        "sequence": model.sequence,
        "tied": int(model.head == "tied"),
        "dropout": int(model.dropout > 0),
        "apart": int(model.documents == "apart"),
        "seen": _seen(model),
    }


def _seen(model: ModelShape) -> float:
    """What windows leave of the pairs of positions that see each other, over the layers on average."""
    sequence, total = model.sequence, 0.0
    for window, layers in model.layers_by_window.items():
        reach = window or sequence  # the first positions have fewer before them
        total += layers * reach * (2 * sequence - reach + 1) / (sequence * (sequence + 1))
    return total / model.layers


def take(case: Case, which: Any) -> Case:
    """The entries `which` (a mask or indices) of a case whose fields may be arrays."""
    return Case(**{name: entries(value, which) for name, value in vars(case).items()})


def entries(value: Number, which: Any) -> Number:
    """The entries `which` of an array; what is one number for all plans as it is."""
    return value[which] if isinstance(value, np.ndarray) and value.ndim else value
