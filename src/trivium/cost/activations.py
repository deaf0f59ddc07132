"""Activation bytes that one micro-batch keeps for the backward on one rank, for one plan or many.

counting "runtime": what Trivium's layers keep, as declared by each part; tests compare it with running layers. "paper":
Korthikanti et al. (arXiv 2205.05198, section 4), whose count for each layer in 16 bits without parallelism is
s b h (34 + 5 a s / h), with stored attention scores and one-byte masks.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from trivium.cost.case import LAYER, NONE, Case, mean
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.part import Kept, Number, Part

Counting = Literal["runtime", "paper"]


def layer_bytes(case: Case, mode: Number, *, counting: Counting = "runtime") -> Number:
    """Return the bytes that a layer keeps in a recompute mode (of trivium.cost.case).

    A compiled layer in mode ATTENTION keeps everything but the result of attention: the compiler chooses what else to
    recompute.
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
    """Return the bytes of kept tensors, without the output of an activation function that is recomputed."""
    widths = case.element_bytes
    total: Number = 0.0
    for each in kept:
        stored = 1 - np.asarray(case.function_again) if each.recomputed == "activation_function" else 1
        total = total + each.elements * widths[each.kind] * stored
    return total


def input_bytes(case: Case) -> Number:
    """Return the bytes of a layer's input: what a recomputed layer keeps, and what a stage sends to the next."""
    return case.positions * case.hidden / case.along * case.weight_bytes


def put_off_bytes(case: Case) -> Number:
    """Return the bytes that a layer's deferred weight gradients keep of a micro-batch: both factors of each product."""
    deferred = case.of_a_layer(lambda layer: sum(p.deferred(case) for p in layer.products(case)))
    return case.weight_bytes * deferred


def embedding_bytes(case: Case) -> Number:
    """Return the bytes of the embedding: token ids, positions, the mask of ids on other ranks, a dropout mask."""
    return mean(case.embeddings, lambda embedding: _bytes(embedding.kept(case), case))


def head_bytes(case: Case) -> Number:
    """Return the bytes of the head without its logits: the final norm, the product's input, targets."""
    return mean(case.heads, lambda head: _bytes(head.kept(case), case))


def logits_bytes(case: Case, *, counting: Counting = "runtime") -> Number:
    """Return the bytes that cross-entropy keeps.

    "runtime", in the weights' dtype: the gradient if a rank holds the whole vocabulary, else the exponentials and two
    sums per position. "paper": the softmax and its input.
    """
    if counting == "runtime":
        return mean(case.heads, lambda head: _bytes(head.kept_by_loss(case), case))
    own = case.positions * case.vocabulary / case.tensor * case.master_bytes
    narrow = np.asarray(case.weight_bytes) < np.asarray(case.master_bytes)
    before = np.where(narrow, case.weight_bytes + case.master_bytes, case.master_bytes)
    return own + own / case.master_bytes * before


def _paper_layer_bytes(layer: Layer, case: Case, mode: Number) -> Number:
    """Return the paper's count for a layer.

    Replicated on all tensor ranks unless sequence parallel: the inputs of two norms and of two products, and two masks.
    Split over tensor ranks: the other tensors of both halves, and the softmax with its dropout mask and output, which
    mode ATTENTION recomputes.
    """
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
