"""Bytes one micro-batch leaves behind for the backward: a first analytic figure.

After Korthikanti et al. (arXiv 2205.05198, section 4), who count, per layer and in 16 bits, s b h (34 + 5 a s / h)
without parallelism. Here the dtype, grouped queries, SwiGLU and absent dropout are allowed for. One rank, one
micro-batch of b = plan.batch.micro sequences of s positions. Every figure is in bytes.
"""

from typing import Literal

from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES


def layer_bytes(plan: Plan, mode: Literal["none", "attention", "layer"]) -> int:
    """What a layer keeps.

    Whole on every tensor rank unless sequence parallel: the inputs of two norms and of two column-split products,
    and two dropout masks. Split over tensor ranks: queries, keys, values, the input of the output product, the
    inputs of the activation function and of the second product. Split by heads: softmax, and with dropout its
    mask and output (mode "attention" computes these again). Mode "layer" keeps the input alone.
    """
    model, tensor = plan.model, plan.layout.tensor
    width = BYTES[plan.precision.weights]
    positions = plan.batch.micro * model.sequence
    along = tensor if plan.sequence_parallel else 1
    if mode == "layer":
        return positions * model.hidden * width // along
    whole = positions * model.hidden * (4 * width + (2 if model.dropout else 0))
    attention = 2 * model.heads * model.head_width + 2 * model.kv * model.head_width
    feed_forward = model.ffn_width * (3 if model.family == "llama" else 2)
    split = positions * (attention + feed_forward) * width
    scores = model.heads * model.sequence * positions * (2 * width + 1 if model.dropout else width)
    return whole // along + (split + (scores if mode == "none" else 0)) // tensor


def stage_ends_bytes(plan: Plan, *, first: bool, last: bool) -> int:
    """Token ids and the dropout mask of the embedding; the inputs of the last norm and of the logits."""
    model = plan.model
    positions = plan.batch.micro * model.sequence
    along = plan.layout.tensor if plan.sequence_parallel else 1
    total = 0
    if first:
        total += positions * 8 + (positions * model.hidden // along if model.dropout else 0)
    if last:
        total += 2 * positions * model.hidden * BYTES[plan.precision.weights] // along
    return total


def logits_bytes(plan: Plan) -> int:
    """Logits as computed, their copy in fp32 where they were narrower, and their softmax in fp32."""
    wide = BYTES[plan.precision.accumulation]
    per_logit = wide + (BYTES[plan.precision.weights] + wide if plan.precision.has_master else wide)
    rows = plan.model.padded_vocabulary(plan.layout.tensor) // plan.layout.tensor
    return plan.batch.micro * plan.model.sequence * rows * per_logit
