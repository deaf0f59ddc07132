"""Compute seconds of one layer, of the embedding and of the head, for one micro-batch on one rank, without collectives.

Bytes of element-wise operations are for 16-bit tensors, read and written once per kernel with Megatron's fusions: two
norms, two sums with dropout and bias, and the activation function. Wider elements scale them.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trivium.cost.case import ATTENTION, LAYER, NONE, Case
from trivium.cost.kernels import Device
from trivium.cost.stack import Stack
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.part import Number, Product, Scores

# Launches per layer, and additional ones with tensor parallelism, and where a router chooses among experts.
FORWARD_OPERATIONS, TENSOR_OPERATIONS, EXPERT_OPERATIONS = 26, 6, 30
BACKWARD_OVER_FORWARD = 1.4  # ratio of launches
BACKWARD_ATTENTION = 2.5 / 0.9  # FLOPs of fused attention's backward and their speed, over the forward's
ATTENTION_OPERATIONS_SHARE = 0.3  # share of a forward's launches
# Traffic of a compiled loss in elements per score: two reads and one write, slower than a copy (measured on an H200).
COMPILED_LOSS_ELEMENTS = 5.0
# Rounding an operand to 8 bits: kernels, and bytes per element that those of an eager step move in between.
ROUNDING_OPERATIONS, ROUNDING_BETWEEN_BYTES = 4, 20.0
CAUSAL_SHARE = 0.5  # share of the score matrix that fused attention computes


class Work(NamedTuple):
    """Seconds of one micro-batch. again: recomputation before the backward."""

    forward: Number
    backward: Number
    again: Number


class Ends(NamedTuple):
    """Seconds of one micro-batch in the embedding, and in the head and loss."""

    embedding: Number
    head_forward: Number
    head_backward: Number


def layer_work(case: Case, device: Device, stack: Stack) -> Work:
    """Return the device's compute seconds for a layer."""
    products, last, backward_products = _products(case, device)
    core_forward, core_backward = attention_seconds(case, device)
    other_forward, other_backward = _elementwise(case, device, stack)
    forward = products + core_forward + other_forward
    spared = last if stack.stops_early else 0.0
    whole = stack.recomputed * (forward - spared)
    return Work(
        forward,
        backward_products + core_backward + other_backward,
        _by_mode(case, attention=core_forward, layer=whole) + _function_again(case, device, stack),
    )


def launch_work(case: Case, device: Device, stack: Stack) -> Work:
    """Return the seconds that the host needs to launch a layer's kernels: a lower bound for the layer's time."""
    routed = case.of_a_layer(lambda layer: sum(half.dispatched(case) is not None for half in layer.halves.values()))
    operations = FORWARD_OPERATIONS + TENSOR_OPERATIONS * (np.asarray(case.tensor) > 1) + EXPERT_OPERATIONS * routed
    operations = operations * (1 - stack.replays * np.asarray(case.recorded))
    forward = device.constants.launch_seconds * operations
    return Work(
        forward,
        BACKWARD_OVER_FORWARD * forward,
        _by_mode(case, attention=ATTENTION_OPERATIONS_SHARE * forward, layer=forward),
    )


def ends_work(case: Case, device: Device, stack: Stack) -> Ends:
    """Return the device's compute seconds for the embedding, the logits, and cross-entropy in fp32."""
    positions, rows = case.positions, case.vocabulary / case.tensor
    traffic = _traffic(case, device, stack)
    loss_forward, loss_backward = _score_bytes(case, device, stack)
    forward = device.product(positions, rows, case.hidden)
    backward = device.product(positions, case.hidden, rows) + device.weight_gradient(positions, rows, case.hidden)
    return Ends(
        device.moved(12.0 * traffic * positions * case.hidden, 4),
        forward + device.moved(loss_forward * positions * rows, 6),
        backward + device.moved(loss_backward * positions * rows, 4),
    )


def attention_seconds(case: Case, device: Device) -> tuple[Number, ...]:
    """Return the seconds of the attention core, forward and backward. Fused attention computes the visible scores;
    unfused attention computes batched products, softmax and dropout over the full score matrices."""
    return of_a_layer(case, lambda layer: _attention_of(layer, case, device))


def _attention_of(layer: Layer, case: Case, device: Device) -> tuple[Number, Number]:
    found = (half.scores(case) for half in layer.halves.values())
    seconds = [_scores_seconds(scores, case, device) for scores in found if scores is not None]
    return sum(forward for forward, _ in seconds), sum(backward for _, backward in seconds)


def _scores_seconds(scores: Scores, case: Case, device: Device) -> tuple[Number, Number]:
    batch, rows, columns, width = scores.heads, scores.rows, scores.columns, scores.width
    flops = 4.0 * batch * rows * columns * width * CAUSAL_SHARE * scores.visible
    fused = device.attention(flops, batch, rows, width)
    fused_backward = device.attention(BACKWARD_ATTENTION * flops, batch, rows, width)
    kept = np.asarray(case.scores_kept) > 0
    if not kept.any():
        return fused, fused_backward
    products = device.product(rows, columns, width, batch) + device.product(rows, width, columns, batch)
    squares = batch * rows * columns
    forward = np.where(kept, products + device.moved(9.0 * squares, 3), fused)
    return forward, np.where(kept, 2 * products + device.moved(11.0 * squares, 3), fused_backward)


def of_a_layer(case: Case, seconds: Callable[[Layer], tuple[Number, ...]]) -> tuple[Number, ...]:
    """Return the means of several figures over the model's layers."""
    (first, share), *others = [(seconds(layer), share) for layer, share in case.different_layers]
    if not others:
        return first
    every = [(first, share), *others]
    return tuple(sum(part * values[n] for values, part in every) for n in range(len(first)))


def recomputed_share(case: Case) -> Number:
    """Return the fraction of layers in the recompute mode of the case; the others keep everything."""
    return np.where(np.asarray(case.recompute) == NONE, 0.0, 1.0 / np.asarray(case.recompute_every))


def _function_again(case: Case, device: Device, stack: Stack) -> Number:
    """Return the seconds to recompute the activation function if its output is not kept."""
    moved = case.of_a_layer(lambda layer: layer.mlp.moved(case).forward)
    again: Number = case.function_again * device.moved(_traffic(case, device, stack) * moved, 1)
    return again


def _by_mode(case: Case, *, attention: Number, layer: Number) -> Number:
    mode = np.asarray(case.recompute)
    return np.where(mode == LAYER, layer, np.where(mode == ATTENTION, attention, 0.0)) * recomputed_share(case)


def _products(case: Case, device: Device) -> tuple[Number, ...]:
    """Return the seconds of a layer's products: forward; the last forward product, unless recomputation includes it;
    and backward."""

    def seconds(layer: Layer) -> tuple[Number, Number, Number]:
        products = layer.products(case)
        each = [product_seconds(product, case, device) for product in products]
        repeated = layer.wiring.norm_reads_last_product or products[-1].repeated
        return sum(f for f, _ in each), 0.0 if repeated else each[-1][0], sum(b for _, b in each)

    return of_a_layer(case, seconds)


def product_seconds(product: Product, case: Case, device: Device) -> tuple[Number, Number]:
    """Return the seconds of a product, forward and backward."""
    on = device.widened(case.master_bytes) if product.wide else device
    forward, backward = _seconds_on(product, case, on, on)
    if product.wide or not np.any(case.float8):
        return forward, backward
    narrow = device.of_float8() if case.float8_codes else device.widened(4)
    forward8, backward8 = _seconds_on(product, case, narrow, narrow if case.float8_weight_gradients else device)
    rounding_forward, rounding_backward = _rounding_seconds(product, case, device)
    share = case.float8
    return (
        share * (forward8 + rounding_forward) + (1 - share) * forward,
        share * (backward8 + rounding_backward) + (1 - share) * backward,
    )


def _seconds_on(p: Product, case: Case, device: Device, of_weights: Device) -> tuple[Number, Number]:
    rows = case.positions * p.visits / p.matrices
    backward = device.product(rows, p.inner, p.columns, p.matrices)
    if p.trained:
        backward = backward + of_weights.weight_gradient(rows, p.columns, p.inner, p.matrices)
    return device.product(rows, p.columns, p.inner, p.matrices), backward


def _rounding_seconds(p: Product, case: Case, device: Device) -> tuple[Number, Number]:
    """Return the seconds to round the operands of a product to 8 bits, forward and backward: each is read for its
    largest value, read again and written. Without a compiler these are kernels of their own, with fp32 between them."""
    rows = case.positions * p.visits
    inputs, weights, outputs = rows * p.inner, p.matrices * p.inner * p.columns, rows * p.columns
    each = 2.0 * case.weight_bytes + 1 + np.where(np.asarray(case.compiled) > 0, 0.0, ROUNDING_BETWEEN_BYTES)
    of_weight = (outputs + inputs) * p.trained * case.float8_weight_gradients
    return (
        device.moved(each * (inputs + weights), 2 * ROUNDING_OPERATIONS),
        device.moved(each * (outputs + weights + of_weight), 4 * ROUNDING_OPERATIONS),
    )


def _elementwise(case: Case, device: Device, stack: Stack) -> tuple[Number, Number]:
    """Return the seconds of norms, sums, biases, dropout and activation functions, forward and backward."""

    def moved(layer: Layer) -> tuple[Number, Number]:
        every = [part.moved(case) for part in (layer.wiring, *layer.halves.values())]
        # Separate passes that Megatron's kernels fuse.
        unfused = sum(each.unfused for each in every) if stack.compiled else 0.0
        return sum(each.forward for each in every), sum(each.backward for each in every) + unfused

    traffic = _traffic(case, device, stack)
    forward, backward = of_a_layer(case, moved)
    return device.moved(traffic * forward, 9), device.moved(traffic * backward, 14)


def _score_bytes(case: Case, device: Device, stack: Stack) -> tuple[Number, Number]:
    """Return the bytes moved per score by the loss, forward and backward."""
    if not stack.fused_loss:
        traffic = _traffic(case, device, stack)
        return 18.0 * traffic, 10.0 * traffic
    # As in parallel/tensor/vocabulary.py and regions.py: fp32 throughout, with some 16-bit scores upcast.
    narrow, split = np.asarray(case.weight_bytes) < 4, np.asarray(case.tensor) > 1
    forward = np.where(split, 24.0 + 10.0 * narrow, 16.0 + 12.0 * narrow)
    backward = np.where(split, 8.0 + 12.0 * narrow, 0.0)
    eager = device.constants.eager_traffic
    compiled = stack.compiled & ~split
    return np.where(compiled, COMPILED_LOSS_ELEMENTS * case.weight_bytes, eager * forward), eager * backward


def _traffic(case: Case, device: Device, stack: Stack) -> Number:
    """Return the element-wise traffic relative to fused 16-bit operations."""
    return np.asarray(case.weight_bytes) / 2 * (1.0 if stack.fused_elementwise else device.constants.eager_traffic)
