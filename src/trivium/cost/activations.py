"""Bytes one micro-batch leaves behind for the backward, on one rank.

"runtime": what our layers keep, term by term; equal to the bytes counted on one CPU process in every recompute
mode (tests/cost/activations_test.py). "paper": Korthikanti et al. (arXiv 2205.05198, section 4), who count, per
layer and in 16 bits, s b h (34 + 5 a s / h) without parallelism: attention that stores its scores, and masks of
one byte. Legend: `positions` = s b, of plan.batch.micro sequences; every figure is in bytes.
"""

from typing import Literal

from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES

Counting = Literal["runtime", "paper"]
Mode = Literal["none", "attention", "layer"]

INDEX = 8  # a token id
FLAG = 1  # a truth value


def layer_bytes(plan: Plan, mode: Mode, *, counting: Counting = "runtime") -> int:
    """What a layer keeps; in mode "layer" only its input."""
    model, width = plan.model, BYTES[plan.precision.weights]
    positions = plan.batch.micro * plan.local_sequence
    if mode == "layer":
        return positions * model.hidden * width // _along(plan)
    if counting == "paper":
        return _paper_layer_bytes(plan, mode)
    own = 2 * _norm_bytes(plan) + (2 * positions * model.hidden * width if model.dropout else 0)
    # The products' inputs are whole on every tensor rank: under sequence parallelism they were gathered.
    gathered = 2 * positions * model.hidden * width
    columns = model.heads * model.head_width
    keys = model.kv * model.head_width
    attention = 2 * columns + 2 * keys  # queries, keys, values as one tensor; the output
    feed_forward = model.ffn_width * (
        4 if model.family == "llama" else 2
    )  # gate, up, silu and product; or two
    total = (
        own // _along(plan) + gathered + positions * (attention + feed_forward) * width // plan.layout.tensor
    )
    return total + (_core_bytes(plan) if mode == "none" else 0)


def stage_ends_bytes(plan: Plan, *, first: bool, last: bool, counting: Counting = "runtime") -> int:
    """Beside layers and logits: token ids and the embedding's mask; the last norm and the input of the logits."""
    model, width = plan.model, BYTES[plan.precision.weights]
    positions = plan.batch.micro * plan.local_sequence
    total = 0
    if first:
        mask = positions * model.hidden * (width if counting == "runtime" else 1) if model.dropout else 0
        elsewhere = positions * FLAG if plan.layout.tensor > 1 else 0
        numbers = plan.local_sequence if model.family == "gpt" else 0  # which rows of the learned positions
        total += (positions + numbers) * INDEX + elsewhere + mask // _along(plan)
    if last:
        total += _norm_bytes(plan) // _along(plan) + positions * model.hidden * width
        total += positions * (INDEX + FLAG)  # targets, and which of them this tensor rank holds
    return total


def logits_bytes(plan: Plan, *, counting: Counting = "runtime") -> int:
    """The softmax in fp32 (our cross-entropy keeps nothing else); the paper's kind also keeps what it came from."""
    wide, width = BYTES[plan.precision.masters], BYTES[plan.precision.weights]
    per_logit = wide
    if counting == "paper":
        per_logit += width + wide if plan.precision.has_master else wide
    rows = plan.model.padded_vocabulary(plan.layout.tensor) // plan.layout.tensor
    return plan.batch.micro * plan.local_sequence * rows * per_logit


def _along(plan: Plan) -> int:
    """Tensor ranks that share the positions between regions."""
    return plan.layout.tensor if plan.sequence_parallel else 1


def _norm_bytes(plan: Plan) -> int:
    """A norm's input and statistics. RMSNorm is composed of several operations: it keeps its input and the
    normalised tensor, both in fp32 or wider."""
    model, width = plan.model, BYTES[plan.precision.weights]
    positions = plan.batch.micro * plan.local_sequence
    if model.family == "llama":
        return positions * (2 * model.hidden + 1) * BYTES[plan.precision.masters]
    return positions * (model.hidden + 2) * width


def _core_bytes(plan: Plan) -> int:
    """What fused attention keeps beside its inputs and output: a logarithm of a sum per head and position.

    Rotary positions also keep turned queries and keys, four tables of angles, and the output once more.
    """
    model, width, tensor = plan.model, BYTES[plan.precision.weights], plan.layout.tensor
    positions = plan.batch.micro * plan.local_sequence
    sums = positions * model.heads * BYTES[plan.precision.masters] // tensor
    if model.family == "gpt":
        return sums
    turned = positions * (2 * model.heads + model.kv) * model.head_width * width // tensor
    return sums + turned + 4 * plan.local_sequence * model.head_width // 2 * width


def _paper_layer_bytes(plan: Plan, mode: Mode) -> int:
    """Whole on every tensor rank unless sequence parallel: the inputs of two norms and of two products, and two
    masks. Split: queries, keys, values, the inputs of the output product, of the activation function and of the
    second product; by heads: softmax, and with dropout its mask and output (computed again in mode "attention")."""
    model, tensor, width = plan.model, plan.layout.tensor, BYTES[plan.precision.weights]
    positions = plan.batch.micro * plan.local_sequence
    whole = positions * model.hidden * (4 * width + (2 if model.dropout else 0))
    attention = 2 * model.heads * model.head_width + 2 * model.kv * model.head_width
    feed_forward = model.ffn_width * (3 if model.family == "llama" else 2)
    split = positions * (attention + feed_forward) * width
    scores = model.heads * plan.local_sequence * positions * (2 * width + 1 if model.dropout else width)
    return whole // _along(plan) + (split + (scores if mode == "none" else 0)) // tensor
