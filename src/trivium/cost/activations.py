"""Bytes one micro-batch leaves behind for the backward, on one rank; for one case or arrays of them.

"runtime": what our layers keep, as each part says; tests count it in running layers. "paper": Korthikanti et al.
(arXiv 2205.05198, section 4), who count, for each layer and in 16 bits, s b h (34 + 5 a s / h) without parallelism:
attention that stores its scores, and masks of one byte.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from trivium.cost.case import LAYER, NONE, Case, mean
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.part import Kept, Number, Part

Counting = Literal["runtime", "paper"]


def layer_bytes(case: Case, mode: Number, *, counting: Counting = "runtime") -> Number:
    """What a layer keeps under a recompute mode (of trivium.cost.case).

    A compiled one whose attention is computed again keeps all but attention's result: the compiler chooses what else.
    """
    mode = np.asarray(mode)
    if counting == "paper":
        kept = case.of_a_layer(lambda layer: _paper_layer_bytes(layer, case, mode))
    else:
        kept = case.of_a_layer(lambda layer: _layer_bytes(layer, case, mode))
    return np.where(mode == LAYER, input_bytes(case), kept)


def _layer_bytes(layer: Layer, case: Case, mode: Number) -> Number:
    kept, one_graph = list(layer.kept(case)), np.asarray(case.one_graph) > 0
    core = _bytes((k for k in kept if k.recomputed == "attention"), case)
    rest = _bytes((k for k in kept if k.recomputed != "attention"), case)
    exchanged = (half.exchanged(case) for half in layer.halves.values())
    result = case.positions * sum(e.out for e in exchanged if e is not None) * case.weight_bytes
    return rest + np.where(mode == NONE, core, np.where(one_graph, core - result, 0.0))


def _bytes(kept: Iterable[Kept], case: Case) -> Number:
    """The bytes of what is kept, without what an activation function gives where it is computed again."""
    widths = case.element_bytes
    total: Number = 0.0
    for each in kept:
        stored = 1 - np.asarray(case.function_again) if each.recomputed == "activation_function" else 1
        total = total + each.elements * widths[each.kind] * stored
    return total


def input_bytes(case: Case) -> Number:
    """The input of a layer: all that a recomputed one keeps, and what crosses from stage to stage."""
    return case.positions * case.hidden / case.along * case.weight_bytes


def put_off_bytes(case: Case) -> Number:
    """What a layer's weight gradients keep of a micro-batch from the gradient of its input until they are computed:
    both factors of each product."""
    deferred = case.of_a_layer(lambda layer: sum(p.deferred(case) for p in layer.products(case)))
    return case.weight_bytes * deferred


def embedding_bytes(case: Case) -> Number:
    """What the first stage keeps besides its layers: token ids, positions, which ids are elsewhere, a mask."""
    return mean(case.embeddings, lambda embedding: _bytes(embedding.kept(case), case))


def head_bytes(case: Case) -> Number:
    """What the last stage keeps besides its layers and the logits: the last norm, the product's input, targets."""
    return mean(case.heads, lambda head: _bytes(head.kept(case), case))


def logits_bytes(case: Case, *, counting: Counting = "runtime") -> Number:
    """What our cross-entropy keeps, in the weights' dtype: its gradient where a rank holds the whole vocabulary, else
    the exponentials, with two sums per position. The paper's kind keeps the softmax and what it came from."""
    if counting == "runtime":
        return mean(case.heads, lambda head: _bytes(head.kept_by_loss(case), case))
    own = case.positions * case.vocabulary / case.tensor * case.master_bytes
    narrow = np.asarray(case.weight_bytes) < np.asarray(case.master_bytes)
    before = np.where(narrow, case.weight_bytes + case.master_bytes, case.master_bytes)
    return own + own / case.master_bytes * before


def _paper_layer_bytes(layer: Layer, case: Case, mode: Number) -> Number:
    """All of it on every tensor rank unless sequence parallel: the inputs of two norms and of two products, and two
    masks. Split: what the halves keep without attention's core; by heads: softmax, and with dropout its mask and
    output (computed again in mode "attention")."""
    width, dropout = case.weight_bytes, layer.wiring.drops
    whole = case.positions * case.hidden * (4 * width + 2 * dropout) / case.along
    return whole + sum(_paper_half_bytes(half, case, mode, dropout) for half in layer.halves.values())


def _paper_half_bytes(half: Part, case: Case, mode: Number, dropout: Number) -> Number:
    width = case.weight_bytes
    split = _bytes((k for k in half.kept(case) if k.recomputed != "attention"), case)
    scores = half.scores(case)
    if scores is None:
        return split
    squares = scores.heads * scores.rows * scores.rows
    return split + np.where(mode == NONE, squares * (width + dropout * (width + 1)), 0.0)
