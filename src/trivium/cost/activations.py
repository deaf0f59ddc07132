"""Bytes one micro-batch leaves behind for the backward, on one rank; for one case or arrays of them.

"runtime": what our layers keep, counted (saved_bytes.py). "paper": Korthikanti et al. (arXiv 2205.05198, section
4), who count, per layer and in 16 bits, s b h (34 + 5 a s / h) without parallelism: attention that stores its
scores, and masks of one byte.
"""

from typing import Literal

import numpy as np

from trivium.cost.case import LAYER, NONE, Case, Number
from trivium.cost.saved_bytes import saved_bytes

Counting = Literal["runtime", "paper"]


def layer_bytes(case: Case, mode: Number, *, counting: Counting = "runtime") -> Number:
    """What a layer keeps under a recompute mode (of trivium.cost.case).

    A compiled one whose attention is computed again keeps all but attention's result: the compiler chooses what else.
    """
    mode = np.asarray(mode)
    if counting == "paper":
        return np.where(mode == LAYER, input_bytes(case), _paper_layer_bytes(case, mode))
    # A search has one mode or all of them: what no entry asks for is not computed.
    one_graph = np.asarray(case.one_graph) > 0
    core = saved_bytes("core", case) if (mode == NONE).any() or one_graph.any() else 0.0
    result = case.positions * case.queries / case.tensor * case.weight_bytes
    of_core = np.where(mode == NONE, core, np.where(one_graph, core - result, 0.0))
    rest = saved_bytes("layer without core", case) if (mode != LAYER).any() else 0.0
    return np.where(mode == LAYER, input_bytes(case), rest + of_core)


def input_bytes(case: Case) -> Number:
    """The input of a layer: all that a recomputed one keeps, and what crosses from stage to stage."""
    return saved_bytes("layer input", case)


def put_off_bytes(case: Case) -> Number:
    """What a layer's weight gradients keep of a micro-batch from the gradient of its input until they are computed:
    both factors of the four products. The gradients of those that leave a tensor region are whole on every tensor
    rank, and without sequence parallelism the inputs of those that enter it."""
    entering = 2 * case.positions * case.hidden / case.along
    inside = (2 * case.queries + 2 * case.keys + (2 + case.gated) * case.ffn) / case.tensor
    return case.weight_bytes * (entering + case.positions * (2 * case.hidden + inside))


def embedding_bytes(case: Case) -> Number:
    """What the first stage keeps besides its layers: token ids, positions, which ids are elsewhere, a mask."""
    return saved_bytes("embedding", case)


def head_bytes(case: Case) -> Number:
    """What the last stage keeps besides its layers and the logits: the last norm, the product's input, targets."""
    return saved_bytes("head", case)


def logits_bytes(case: Case, *, counting: Counting = "runtime") -> Number:
    """What our cross-entropy keeps, in the weights' dtype: its gradient where a rank holds the whole vocabulary, else
    the exponentials, with two sums per position. The paper's kind keeps the softmax and what it came from."""
    if counting == "runtime":
        return saved_bytes("logits", case)
    own = case.positions * case.vocabulary / case.tensor * case.master_bytes
    narrow = np.asarray(case.weight_bytes) < np.asarray(case.master_bytes)
    before = np.where(narrow, case.weight_bytes + case.master_bytes, case.master_bytes)
    return own + own / case.master_bytes * before


def _paper_layer_bytes(case: Case, mode: Number) -> Number:
    """Whole on every tensor rank unless sequence parallel: the inputs of two norms and of two products, and two
    masks. Split: queries, keys, values, the inputs of the output product, of the activation function and of the
    second product; by heads: softmax, and with dropout its mask and output (computed again in mode "attention")."""
    width, positions = case.weight_bytes, case.positions
    whole = positions * case.hidden * (4 * width + 2 * case.dropout)
    attention = 2 * (case.queries + case.keys)
    feed_forward = case.ffn * (2 + case.gated - case.function_again)
    split = positions * (attention + feed_forward) * width
    scores = case.heads * case.local_sequence * positions * (width + case.dropout * (width + 1))
    return whole / case.along + (split + np.where(np.asarray(mode) == NONE, scores, 0)) / case.tensor
