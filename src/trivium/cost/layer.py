"""Seconds of one layer, and of the model's two ends, for one micro-batch on one rank, without collectives.

Bytes of element-wise work are of 16-bit tensors, read and written once per kernel in Megatron's fusions: two norms,
two sums with dropout and bias, and the activation function. Wider elements move more.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trivium.cost.case import ATTENTION, LAYER, NONE, Case
from trivium.cost.kernels import Device
from trivium.cost.stack import Stack
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.part import Number, Scores

FORWARD_OPERATIONS, TENSOR_OPERATIONS = 26, 6  # launched for a layer; more of them where it is split
BACKWARD_OVER_FORWARD = 1.4  # operations of a backward
BACKWARD_ATTENTION = 2.5 / 0.9  # FLOPs of fused attention's backward and their speed, over the forward's
CORE_SHARE = 0.3  # of a forward's operations that are attention's core
# Of a compiled loss, which reads each score twice and writes it once, slower than a copy (measured on an H200).
COMPILED_LOSS = 5.0
MASKED = 0.5  # share of the square of scores that fused attention computes


class Work(NamedTuple):
    """Of one micro-batch: forward, backward, and what is computed again before the backward. Seconds."""

    forward: Number
    backward: Number
    again: Number


class Ends(NamedTuple):
    """Of one micro-batch: the embedding; the logits and their loss, forward and backward. Seconds."""

    embedding: Number
    head_forward: Number
    head_backward: Number


def layer_work(case: Case, device: Device, stack: Stack) -> Work:
    """What the device computes for a layer."""
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
    """What the host takes to launch a layer's operations: a floor under the device's own time."""
    operations = FORWARD_OPERATIONS + TENSOR_OPERATIONS * (np.asarray(case.tensor) > 1)
    operations = operations * (1 - stack.replays * np.asarray(case.recorded))
    forward = device.constants.launch_seconds * operations
    return Work(forward, BACKWARD_OVER_FORWARD * forward, _by_mode(case, attention=CORE_SHARE * forward, layer=forward))


def ends_work(case: Case, device: Device, stack: Stack) -> Ends:
    """What the device computes for the embedding, and for logits and cross-entropy in fp32."""
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
    """Of its core, forward and backward. Fused: the arithmetic under the mask, and in the window. Unfused: batched
    products, softmax and dropout over whole squares."""
    return _of_a_layer(case, lambda layer: _attention_of(layer, case, device))


def _attention_of(layer: Layer, case: Case, device: Device) -> tuple[Number, Number]:
    found = (half.scores(case) for half in layer.halves.values())
    seconds = [_scores_seconds(scores, case, device) for scores in found if scores is not None]
    return sum(forward for forward, _ in seconds), sum(backward for _, backward in seconds)


def _scores_seconds(scores: Scores, case: Case, device: Device) -> tuple[Number, Number]:
    batch, rows, columns, width = scores.heads, scores.rows, scores.columns, scores.width
    flops = 4.0 * batch * rows * columns * width * MASKED * scores.visible
    fused = device.attention(flops, batch, rows, width)
    fused_backward = device.attention(BACKWARD_ATTENTION * flops, batch, rows, width)
    kept = np.asarray(case.scores_kept) > 0
    if not kept.any():
        return fused, fused_backward
    products = device.product(rows, columns, width, batch) + device.product(rows, width, columns, batch)
    squares = batch * rows * columns
    forward = np.where(kept, products + device.moved(9.0 * squares, 3), fused)
    return forward, np.where(kept, 2 * products + device.moved(11.0 * squares, 3), fused_backward)


def _of_a_layer(case: Case, seconds: Callable[[Layer], tuple[Number, ...]]) -> tuple[Number, ...]:
    """Each of several figures as its mean over the model's layers."""
    (first, share), *others = [(seconds(layer), share) for layer, share in case.different_layers]
    if not others:
        return first
    every = [(first, share), *others]
    return tuple(sum(part * values[n] for values, part in every) for n in range(len(first)))


def recomputed_share(case: Case) -> Number:
    """Share of the layers in the recompute mode of the case; the others keep everything."""
    return np.where(np.asarray(case.recompute) == NONE, 0.0, 1.0 / np.asarray(case.recompute_every))


def _function_again(case: Case, device: Device, stack: Stack) -> Number:
    """The activation function's forward a second time, where its value is not kept."""
    moved = case.of_a_layer(lambda layer: layer.mlp.moved(case).forward)
    again: Number = case.function_again * device.moved(_traffic(case, device, stack) * moved, 1)
    return again


def _by_mode(case: Case, *, attention: Number, layer: Number) -> Number:
    mode = np.asarray(case.recompute)
    return np.where(mode == LAYER, layer, np.where(mode == ATTENTION, attention, 0.0)) * recomputed_share(case)


def _products(case: Case, device: Device) -> tuple[Number, ...]:
    """The products of a layer: forward; the last one of them, unless a norm reads what it gives; and backward, of
    inputs and of weights."""
    positions = case.positions

    def seconds(layer: Layer) -> tuple[Number, Number, Number]:
        products = layer.products(case)
        forward = [device.product(positions, p.columns, p.inner) for p in products]
        backward = sum(
            device.product(positions, p.inner, p.columns) + device.weight_gradient(positions, p.columns, p.inner)
            for p in products
        )
        return sum(forward), 0.0 if layer.wiring.norm_reads_last_product else forward[-1], backward

    return _of_a_layer(case, seconds)


def _elementwise(case: Case, device: Device, stack: Stack) -> tuple[Number, Number]:
    """Norms, sums, biases, dropout and activation functions, forward and backward."""

    def moved(layer: Layer) -> tuple[Number, Number]:
        every = [part.moved(case) for part in (layer.wiring, *layer.halves.values())]
        # Separate passes over what Megatron's kernels compute on their way.
        unfused = sum(each.unfused for each in every) if stack.compiled else 0.0
        return sum(each.forward for each in every), sum(each.backward for each in every) + unfused

    traffic = _traffic(case, device, stack)
    forward, backward = _of_a_layer(case, moved)
    return device.moved(traffic * forward, 9), device.moved(traffic * backward, 14)


def _score_bytes(case: Case, device: Device, stack: Stack) -> tuple[Number, Number]:
    """Bytes moved for each score, forward and backward."""
    if not stack.fused_loss:
        traffic = _traffic(case, device, stack)
        return 18.0 * traffic, 10.0 * traffic
    # As in vocabulary.py and regions.py of parallel/tensor/: fp32 throughout; some of the narrow scores are widened.
    narrow, split = np.asarray(case.weight_bytes) < 4, np.asarray(case.tensor) > 1
    forward = np.where(split, 24.0 + 10.0 * narrow, 16.0 + 12.0 * narrow)
    backward = np.where(split, 8.0 + 12.0 * narrow, 0.0)
    eager = device.constants.eager_traffic
    compiled = stack.compiled & ~split
    return np.where(compiled, COMPILED_LOSS * case.weight_bytes, eager * forward), eager * backward


def _traffic(case: Case, device: Device, stack: Stack) -> Number:
    """Element-wise bytes over those of fused operations in 16 bits."""
    return np.asarray(case.weight_bytes) / 2 * (1.0 if stack.fused_elementwise else device.constants.eager_traffic)
