"""Seconds of the pieces of a step: one layer, the model's ends, a transfer, for one micro-batch on one rank."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trivium.cost.case import LAYER, NONE, Case
from trivium.cost.collectives import Road, all_gather_seconds, all_reduce_seconds, send_seconds
from trivium.cost.context import context_seconds
from trivium.cost.kernels import Device
from trivium.cost.layer import ends_work, launch_work, layer_work, recomputed_share
from trivium.cost.overlap import moved_when_triggered, pipelined_seconds, tiled_seconds, tiles_of
from trivium.cost.rank_parameters import layer_parameters, table_parameters
from trivium.cost.setting import Setting
from trivium.plan.layers.layer import HALVES
from trivium.plan.layers.part import Number

LOSS_BYTES, LOSS_REDUCTIONS = 8, 3  # per position: largest score, sum of exponentials, the target's score
SUM_BYTES = 4  # of each number of a position that a layer sums over tensor ranks besides its products


class Piece(NamedTuple):
    """Seconds by what they are spent on. gathers: of weights and gradients, per micro-batch (ZeRO stage 3)."""

    compute: Number = 0.0
    tensor: Number = 0.0
    context: Number = 0.0
    gathers: Number = 0.0

    @property
    def total(self) -> Number:
        return self.compute + self.tensor + self.context + self.gathers

    def plus(self, other: "Piece") -> "Piece":
        """Both, part by part."""
        return Piece(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: Number) -> "Piece":
        """So many of it."""
        return Piece(*(factor * value for value in self))


class Sublayer(NamedTuple):
    """A product whose result is summed over tensor ranks: its inner length here, seconds of product and reduction,
    bytes of operands and result."""

    name: str
    backward: bool
    inner: Number
    product: Number
    reduction: Number
    operand_bytes: Number
    result_bytes: Number

    @property
    def alone(self) -> Number:
        """One after the other."""
        return self.product + self.reduction


@dataclass(frozen=True)
class Prices:
    """Of one micro-batch. A backward first computes again what was not kept. transfer: to the next stage."""

    layer_forward: Piece
    layer_backward: Piece
    embedding_forward: Piece
    embedding_backward: Piece
    head_forward: Piece
    head_backward: Piece
    transfer: Number

    @property
    def layer(self) -> Piece:
        """A layer, forward and backward."""
        return self.layer_forward.plus(self.layer_backward)

    @property
    def first(self) -> Piece:
        """What the first stage has besides its layers."""
        return self.embedding_forward.plus(self.embedding_backward)

    @property
    def last(self) -> Piece:
        """What the last stage has besides its layers."""
        return self.head_forward.plus(self.head_backward)


def prices(at: Setting) -> Prices:
    """The pieces of a step, slowed down as `Setting.slowness` says."""
    case, device, slowness = at.case, at.device, at.slowness
    tensor, ends = _tensor_seconds(at), ends_work(case, device, at.stack)
    forward, backward = _layer(at, device, tensor)
    gathered, scattered = _table_traffic(at, backward.compute)
    # Both uses of a tied table in one backward are one gradient.
    once = np.asarray(case.tied) * np.asarray(case.ends_together) * (np.asarray(case.pipeline) == 1)
    twice = 1 - once * (1 - np.asarray(case.puts_off))
    small = LOSS_REDUCTIONS * all_reduce_seconds(LOSS_BYTES * case.positions, case.tensor, _tensor_road(at))
    return Prices(
        layer_forward=forward.times(slowness),
        layer_backward=backward.times(slowness),
        embedding_forward=Piece(ends.embedding, tensor, 0.0, gathered).times(slowness),
        embedding_backward=Piece(ends.embedding / 2, tensor / 2, 0.0, twice * scattered).times(slowness),
        head_forward=Piece(ends.head_forward, small, 0.0, gathered).times(slowness),
        head_backward=Piece(ends.head_backward, _backward_messages(at, tensor).sent, 0.0, gathered + scattered).times(
            slowness
        ),
        transfer=_transfer_seconds(at) * slowness,
    )


def _layer(at: Setting, device: Device, tensor: Number) -> tuple[Piece, Piece]:
    case, stack = at.case, at.stack
    work, floor = layer_work(case, device, stack), launch_work(case, device, stack)
    again = stack.recomputed * recomputed_share(case) * (np.asarray(case.recompute) == LAYER)
    shorter_forward, shorter_backward = hidden_seconds(at)
    sums = case.of_a_layer(lambda layer: layer.sums)
    summed = all_reduce_seconds(SUM_BYTES * sums * case.positions, case.tensor, _tensor_road(at))
    norms = (np.asarray(sums) > 0) * summed
    beside = at.constants.tensor_overlap if stack.overlaps_tensor_forward and at.hides else 0.0
    tensor_forward = (1 - beside) * (2 * tensor - shorter_forward) + norms
    sent, shown = _backward_messages(at, tensor)
    tensor_backward = np.minimum(2 * shown, np.maximum(0.0, 2 * sent - shorter_backward)) + norms
    tensor_again = again * tensor_forward
    context_forward, context_backward = context_seconds(at)
    context_again = recomputed_share(case) * (np.asarray(case.recompute) != NONE) * context_forward
    # The host launches while the device computes or waits for messages: with both, it is a floor under a layer.
    forward = np.maximum(work.forward, floor.forward - tensor_forward - context_forward)
    repeated = np.maximum(work.again, floor.again - tensor_again - context_again)
    backward = np.maximum(work.backward, floor.backward - tensor_backward - context_backward)
    gather_forward, gather_backward = _layer_gathers(at, forward + tensor_forward, backward + repeated)
    return (
        Piece(forward, tensor_forward, context_forward, gather_forward),
        Piece(
            backward + repeated + _accumulation(at, device),
            tensor_backward + tensor_again,
            context_backward + context_again,
            gather_backward,
        ),
    )


class Messages(NamedTuple):
    """Seconds of them, and of those that products beside them do not hide."""

    sent: Number
    shown: Number


def _backward_messages(at: Setting, tensor: Number) -> Messages:
    """Around one region in the backward; tensor: seconds of an all-reduce, or of the two halves that replace it.

    Nothing is hidden where the ranks' own cores move the bytes. Ours sums beside the weight's product, where that is
    no action of its own, and gathers inputs again beside another; the gradient that it gathers, products wait for.
    """
    case, stack = at.case, at.stack
    hides = stack.overlaps_tensor and at.hides
    shown = 1 - (at.constants.tensor_overlap if hides else 0.0)
    if not stack.gathers_again:
        return Messages(tensor, shown * tensor)
    half = 0.5 * tensor * np.asarray(case.sequence_parallel)
    summed = np.where(np.asarray(case.puts_off) > 0, 1.0, shown) * (tensor - half)
    return Messages(tensor + half, half + summed + shown * half)


def hidden_seconds(at: Setting) -> tuple[Number, Number]:
    """Seconds of a layer's tensor collectives beside the products they follow, forward and backward: where the plan
    cuts its row-split products into chunks, or simulated hardware reduces every product tile by tile."""
    case = at.case
    chunks = np.asarray(case.row_chunks)
    if not at.stack.tile_triggered and not ((chunks > 1) & (np.asarray(case.tensor) > 1)).any():
        return 0.0, 0.0
    every = sublayers(at)
    if not at.stack.tile_triggered:
        return sum(s.alone - _in_chunks(at, s) for s in every if not s.backward), 0.0
    saved = [(s.backward, s.alone - triggered_seconds(at, s)) for s in every]
    return sum(t for back, t in saved if not back), sum(t for back, t in saved if back)


def triggered_seconds(at: Setting, sublayer: Sublayer) -> Number:
    """A sublayer whose product triggers its reduction tile by tile; never faster than memory moves its bytes."""
    case = at.case
    moved = moved_when_triggered(sublayer.operand_bytes, sublayer.result_bytes, case.tensor)
    start = np.where(np.asarray(case.tensor) > 1, _tensor_road(at).start / 2, 0.0)
    tiles = tiles_of(case.positions, case.hidden)
    together = tiled_seconds(sublayer.product, sublayer.reduction, start, tiles)
    floor: Number = np.maximum(together, (moved.product + moved.reduction) / at.device.memory)
    return np.minimum(floor, sublayer.alone)


def sublayers(at: Setting) -> list[Sublayer]:
    """The products of a layer whose results tensor ranks sum: forward those split by rows, backward the gradients of
    the inputs of those split by columns."""
    c, device = at.case, at.device
    result = c.positions * c.hidden * c.weight_bytes
    reduction = all_gather_seconds(result, c.tensor, _tensor_road(at))
    inner = _summed_products(c)
    return [
        Sublayer(
            name,
            back,
            length,
            device.product(c.positions, c.hidden, length),
            reduction,
            (c.positions + c.hidden) * length * c.weight_bytes,
            result,
        )
        for name, back, length in inner
    ]


def _summed_products(case: Case) -> list[tuple[str, bool, Number]]:
    """The products whose results tensor ranks sum: name, whether in the backward, and inner length. Of a model with
    different layers those of the first stand for all."""
    layer = case.different_layers[0][0]
    products = [(HALVES[name], p) for name, half in layer.halves.items() for p in half.products(case)]
    return [
        *((f"{name} output", False, p.inner) for name, p in products if not p.enters),
        *((f"gradient of {name}'s input", True, p.columns) for name, p in products if p.enters),
    ]


def _in_chunks(at: Setting, sublayer: Sublayer) -> Number:
    """Product and reduction of a sublayer in chunks; each reduction has its own start."""
    case, chunks = at.case, at.case.row_chunks
    work = at.device.product(case.positions / chunks, case.hidden, sublayer.inner)
    moving = all_gather_seconds(sublayer.result_bytes / chunks, case.tensor, _tensor_road(at))
    if not at.hides:
        together = chunks * (work + moving)
    else:
        together = pipelined_seconds(work, moving, chunks)
    return np.where(np.asarray(case.tensor) > 1, together, sublayer.alone)


def _accumulation(at: Setting, device: Device) -> Number:
    """Adding a micro-batch's weight gradients to those before: a gradient read, the sum read and written."""
    case, stack = at.case, at.stack
    if stack.fused_accumulation:
        return 0.0
    moved = case.weight_bytes + 2 * case.gradient_bytes
    if stack.deepspeed:
        moved = moved + at.constants.deepspeed_gradient_bytes
    return np.where(np.asarray(case.micro_batches) > 1, moved * layer_parameters(case) / device.memory, 0.0)


def _tensor_road(at: Setting) -> Road:
    return at.road(at.case.tensor, at.strides.tensor)


def _tensor_seconds(at: Setting) -> Number:
    """An all-reduce of one micro-batch's activations, or the all-gather and reduce-scatter that replace it."""
    case = at.case
    whole = case.positions * case.hidden * case.weight_bytes
    slower = at.constants.deepspeed_tensor if at.stack.deepspeed else 1.0
    return slower * all_reduce_seconds(whole, case.tensor, _tensor_road(at))


def _transfer_seconds(at: Setting) -> Number:
    """The activations of one micro-batch between stages; over the fabric in slices, which are gathered inside."""
    case, stack = at.case, at.stack
    whole = case.positions * case.hidden * case.weight_bytes
    sliced = np.asarray(case.sequence_parallel) > 0
    slices = np.where(sliced | stack.split_transfers, case.tensor, 1)
    sent = send_seconds(whole / slices, at.road_to(case.pipeline, at.strides.pipeline))
    gathered = np.where(sliced, 0.0, all_gather_seconds(whole, slices, _tensor_road(at)))
    return np.where(np.asarray(case.pipeline) > 1, sent + gathered, 0.0)


def _layer_gathers(at: Setting, forward: Number, backward: Number) -> tuple[Number, Number]:
    """Return what ZeRO stage 3 adds to a layer: weights gathered for each pass, and gradients scattered after the
    second.

    Of work and gathers side by side the longer counts, and of the shorter the share that is not hidden.
    """
    case = at.case
    asked = np.asarray(case.zero) >= 3
    if not asked.any():
        return 0.0, 0.0
    matrices = case.of_a_layer(lambda layer: float(sum(len(row.shape) > 1 for row in layer.rows)))
    gather, scatter = _sharded_seconds(at, layer_parameters(case), matrices)
    if at.stack.gathers_by_parameter:
        again = recomputed_share(case) * (np.asarray(case.recompute) == LAYER)
        return np.where(asked, gather, 0.0), np.where(asked, (1 + again) * gather + scatter, 0.0)

    def added(work: Number, moving: Number) -> Number:
        return np.where(asked, at.added(work, moving), 0.0)

    return added(forward, gather), added(backward, gather + scatter)


def _table_traffic(at: Setting, next_to_it: Number) -> tuple[Number, Number]:
    """Return what ZeRO stage 3 adds for the table of tokens: one gather, beside nothing, and one reduction of its
    gradient, beside the work that follows."""
    asked = np.asarray(at.case.zero) >= 3
    if not asked.any():
        return 0.0, 0.0
    gather, scatter = _sharded_seconds(at, table_parameters(at.case), 1)
    shown = scatter if at.stack.gathers_by_parameter else at.added(next_to_it, scatter)
    return np.where(asked, gather, 0.0), np.where(asked, shown, 0.0)


def _sharded_seconds(at: Setting, elements: Number, matrices: Number) -> tuple[Number, Number]:
    """Return the seconds of one gather of so many weights over sharers, and of one reduction of their gradients.

    A stack that gathers by parameter starts a collective for each matrix. DeepSpeed first writes zeros over what it
    gathers into, and PyTorch copies the part of each rank out of the buffer of a gather, or into that of a reduction.
    """
    case, road = at.case, at.road(at.case.sharers, at.strides.sharers)
    weights, gradients = elements * case.weight_bytes, elements * case.reduction_bytes
    gather = all_gather_seconds(weights, case.sharers, road)
    scatter = all_gather_seconds(gradients, case.sharers, road)
    if not at.stack.gathers_by_parameter:
        return gather, scatter
    starts = (matrices - 1) * all_gather_seconds(0.0, case.sharers, road)
    parts = matrices * case.sharers
    copied = at.device.moved(weights, matrices) + at.device.moved(2 * weights, parts)
    return gather + starts + copied, scatter + starts + at.device.moved(2 * gradients, parts)
