"""Seconds of one micro-batch on one rank: a layer, the embedding, the head, and a transfer between stages."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.cost.activations import layer_bytes
from trivium.cost.case import LAYER, NONE, Case
from trivium.cost.collectives import GroupLink, all_gather_seconds, all_reduce_seconds, exchange_seconds, send_seconds
from trivium.cost.kernels import Device
from trivium.cost.layer import (
    attention_seconds,
    ends_work,
    launch_work,
    layer_work,
    of_a_layer,
    product_seconds,
    recomputed_share,
)
from trivium.cost.overlap import moved_when_triggered, pipelined_seconds, tiled_seconds, tiles_of
from trivium.cost.rank_parameters import layer_experts, layer_parameters, table_parameters
from trivium.cost.setting import Setting
from trivium.cost.tensor_ring import spared_seconds
from trivium.plan.layers.layer import HALVES, Layer
from trivium.plan.layers.part import Exchanged, Number

LOSS_BYTES = 8  # per position in each all-reduce of the loss
LOSS_REDUCTIONS = 3  # largest score, sum of exponentials, the target's score
SUM_BYTES = 4  # per position for each additional sum of a layer over tensor ranks
COUNT_BYTES = 8  # for the number of rows of each expert
EXPERT_MATRICES = 2  # parameters that hold a layer's experts


class Piece(NamedTuple):
    """Seconds by category. expert: tokens that are sent to the ranks that have their experts, and back. gathers:
    collectives of weights and gradients per micro-batch (ZeRO stage 3). host: copies of activations between device and
    host that no work hides."""

    compute: Number = 0.0
    tensor: Number = 0.0
    context: Number = 0.0
    expert: Number = 0.0
    gathers: Number = 0.0
    host: Number = 0.0

    @property
    def total(self) -> Number:
        return self.compute + self.tensor + self.context + self.expert + self.gathers + self.host

    def plus(self, other: "Piece") -> "Piece":
        """Return the sum of both, by category."""
        return Piece(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: Number) -> "Piece":
        """Return the piece multiplied by `factor`."""
        return Piece(*(factor * value for value in self))


class Sublayer(NamedTuple):
    """A product whose result is summed over tensor ranks. inner: its inner length on one rank. product, reduction:
    seconds."""

    name: str
    backward: bool
    inner: Number
    product: Number
    reduction: Number
    operand_bytes: Number
    result_bytes: Number

    @property
    def alone(self) -> Number:
        """Seconds without overlap."""
        return self.product + self.reduction


@dataclass(frozen=True)
class Prices:
    """Prices of one micro-batch. A backward includes recomputation. transfer: seconds to the next stage."""

    layer_forward: Piece
    layer_backward: Piece
    embedding_forward: Piece
    embedding_backward: Piece
    head_forward: Piece
    head_backward: Piece
    transfer: Number

    @property
    def layer(self) -> Piece:
        """Forward and backward of a layer."""
        return self.layer_forward.plus(self.layer_backward)

    @property
    def forward_share(self) -> Number:
        """The forward's share of a layer's time."""
        forward = self.layer_forward.total
        return forward / (forward + self.layer_backward.total)

    @property
    def first(self) -> Piece:
        """Additional price of the first stage."""
        return self.embedding_forward.plus(self.embedding_backward)

    @property
    def last(self) -> Piece:
        """Additional price of the last stage."""
        return self.head_forward.plus(self.head_backward)


def stage_pieces(
    kept: Prices, again: Prices, layers: NDArray[np.int64], recomputed: NDArray[np.int64]
) -> tuple[Piece, Piece]:
    """Return forward and backward of one micro-batch by category, each an array [stage].

    kept, again: prices of the plan without recomputation, and with every layer recomputed. layers, recomputed: number
    of layers of each stage, and of those that are recomputed. The first stage embeds and the last one has the head.
    """
    numbers = np.arange(len(layers))
    first, last = numbers == 0, numbers == len(layers) - 1

    def of_layers(of_again: Piece, of_kept: Piece) -> Piece:
        return of_again.times(recomputed).plus(of_kept.times(layers - recomputed))

    forward = of_layers(again.layer_forward, kept.layer_forward)
    backward = of_layers(again.layer_backward, kept.layer_backward)
    return (
        forward.plus(kept.embedding_forward.times(first)).plus(kept.head_forward.times(last)),
        backward.plus(kept.embedding_backward.times(first)).plus(kept.head_backward.times(last)),
    )


def action_seconds(forward: Piece, backward: Piece, *, split: bool) -> NDArray[np.float64]:
    """Return seconds [operation, stage], with operations in the order of `plan.schedule.ops`. Both parts of a split
    backward take equally long."""
    parts = 2 if split else 1
    return np.stack([forward.total, *[backward.total / parts] * parts]).astype(float)


def prices(at: Setting) -> Prices:
    """Return the prices of a step's pieces, multiplied by `Setting.slowness`."""
    case, device, slowness = at.case, at.device, at.slowness
    tensor, ends = _tensor_seconds(at), ends_work(case, device, at.stack)
    forward, backward = _layer(at, device, tensor)
    gathered, scattered = _table_traffic(at, backward.compute)
    # Both uses of a tied table in the same backward give one gradient.
    once = np.asarray(case.tied) * np.asarray(case.ends_together) * (np.asarray(case.pipeline) == 1)
    twice = 1 - once * (1 - np.asarray(case.puts_off))
    small = LOSS_REDUCTIONS * all_reduce_seconds(LOSS_BYTES * case.positions, case.tensor, _tensor_link(at))
    return Prices(
        layer_forward=forward.times(slowness),
        layer_backward=backward.times(slowness),
        embedding_forward=Piece(ends.embedding, tensor, gathers=gathered).times(slowness),
        embedding_backward=Piece(ends.embedding / 2, tensor / 2, gathers=twice * scattered).times(slowness),
        head_forward=Piece(ends.head_forward, small, gathers=gathered).times(slowness),
        head_backward=Piece(
            ends.head_backward, _backward_messages(at, tensor).sent, gathers=gathered + scattered
        ).times(slowness),
        transfer=_transfer_seconds(at) * slowness,
    )


def _adapter_seconds(at: Setting) -> Number:
    """Return the seconds in which tensor ranks exchange what a layer's adapters sum, in one direction."""
    case = at.case
    numbers = case.of_a_layer(lambda layer: layer.adapter_sums().entering + layer.adapter_sums().leaving)
    seconds = all_reduce_seconds(case.weight_bytes * numbers * case.positions, case.tensor, _tensor_link(at)) / 2
    return (np.asarray(numbers) > 0) * seconds


def _layer(at: Setting, device: Device, tensor: Number) -> tuple[Piece, Piece]:
    case, stack = at.case, at.stack
    work, floor = layer_work(case, device, stack), launch_work(case, device, stack)
    again = stack.recomputed * recomputed_share(case) * (np.asarray(case.recompute) == LAYER)
    shorter_forward, shorter_backward = hidden_seconds(at)
    sums = case.of_a_layer(lambda layer: layer.sums)
    summed = all_reduce_seconds(SUM_BYTES * sums * case.positions, case.tensor, _tensor_link(at))
    norms = (np.asarray(sums) > 0) * summed + _adapter_seconds(at)
    beside = at.constants.tensor_overlap if stack.overlaps_tensor_forward and at.hides else 0.0
    spared_forward, spared_backward = spared_seconds(at)
    tensor_forward = (1 - beside) * (2 * tensor - shorter_forward) + norms - spared_forward
    sent, shown = _backward_messages(at, tensor)
    tensor_backward = np.minimum(2 * shown, np.maximum(0.0, 2 * sent - shorter_backward)) + norms - spared_backward
    tensor_again = again * tensor_forward
    context_forward, context_backward = context_seconds(at)
    context_again = recomputed_share(case) * (np.asarray(case.recompute) != NONE) * context_forward
    expert_forward, expert_backward, expert_again = expert_seconds(at)
    expert_again = again * expert_again
    # The host launches kernels while the device computes or communicates, so its time is a lower bound for the layer.
    forward = np.maximum(work.forward, floor.forward - tensor_forward - context_forward - expert_forward)
    repeated = np.maximum(work.again, floor.again - tensor_again - context_again - expert_again)
    backward = np.maximum(work.backward, floor.backward - tensor_backward - context_backward - expert_backward)
    gather_forward, gather_backward = _layer_gathers(at, forward + tensor_forward, backward + repeated)
    there = Piece(forward, tensor_forward, context_forward, expert_forward, gather_forward)
    back = Piece(
        backward + repeated + _accumulation(at, device),
        tensor_backward + tensor_again,
        context_backward + context_again,
        expert_backward + expert_again,
        gather_backward,
    )
    return _with_copies(at, there), _with_copies(at, back)


def _with_copies(at: Setting, work: Piece) -> Piece:
    """Return a layer's forward or backward with the copies of its activations to the host or back that it does not
    hide."""
    case, share = at.case, np.asarray(at.case.activations_away)
    if not share.any():
        return work
    again = recomputed_share(case)
    kept = again * layer_bytes(case, case.recompute) + (1 - again) * layer_bytes(case, NONE)
    seconds = kept / at.machine.host_bandwidth
    return work._replace(host=share * (np.maximum(0.0, seconds - work.total) if at.hides else seconds))


class Messages(NamedTuple):
    """Seconds of messages, and the part of them that is not hidden by concurrent products."""

    sent: Number
    shown: Number


def _backward_messages(at: Setting, tensor: Number) -> Messages:
    """Return the messages of one tensor-parallel region in the backward. tensor: seconds of an all-reduce, or of the
    all-gather and reduce-scatter that replace it.

    Nothing is hidden if the ranks' own cores move the bytes. Trivium reduces during the product of the weight gradient,
    unless that is deferred, and gathers inputs again during another product. Products wait for a gathered gradient.
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
    """Return the hidden seconds of a layer's tensor collectives, forward and backward, if the plan divides row-parallel
    products into chunks or simulated hardware reduces every product tile by tile."""
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
    """Return the seconds of a sublayer whose product triggers its reduction tile by tile, limited by memory
    bandwidth."""
    case = at.case
    moved = moved_when_triggered(sublayer.operand_bytes, sublayer.result_bytes, case.tensor)
    start = np.where(np.asarray(case.tensor) > 1, _tensor_link(at).start_seconds / 2, 0.0)
    tiles = tiles_of(case.positions, case.hidden)
    together = tiled_seconds(sublayer.product, sublayer.reduction, start, tiles)
    floor: Number = np.maximum(together, (moved.product + moved.reduction) / at.device.memory)
    return np.minimum(floor, sublayer.alone)


def sublayers(at: Setting) -> list[Sublayer]:
    """Return the products of a layer whose results are summed over tensor ranks: the row-parallel ones in the forward,
    and the input gradients of the column-parallel ones in the backward."""
    c, device = at.case, at.device
    result = c.positions * c.hidden * c.weight_bytes
    reduction = all_gather_seconds(result, c.tensor, _tensor_link(at))
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
    """Return the products of `sublayers`: name, whether in the backward, and inner length. In a model with different
    layers, the first layer represents all. Results of experts are weighted before they are summed, and do not count."""
    layer = case.different_layers[0][0]
    halves = {HALVES[name]: half for name, half in layer.halves.items() if half.dispatched(case) is None}
    products = [(name, product) for name, half in halves.items() for product in half.products(case)]
    return [
        *((f"{name} output", False, p.inner) for name, p in products if not p.enters),
        *((f"gradient of {name}'s input", True, p.columns) for name, p in products if p.enters),
    ]


def _in_chunks(at: Setting, sublayer: Sublayer) -> Number:
    """Return the seconds of a sublayer in chunks; each reduction has its own start-up."""
    case, chunks = at.case, at.case.row_chunks
    work = at.device.product(case.positions / chunks, case.hidden, sublayer.inner)
    moving = all_gather_seconds(sublayer.result_bytes / chunks, case.tensor, _tensor_link(at))
    if not at.hides:
        together = chunks * (work + moving)
    else:
        together = pipelined_seconds(work, moving, chunks)
    return np.where(np.asarray(case.tensor) > 1, together, sublayer.alone)


def _accumulation(at: Setting, device: Device) -> Number:
    """Return the seconds to accumulate weight gradients: one gradient read, the sum read and written."""
    case, stack = at.case, at.stack
    if stack.fused_accumulation:
        return 0.0
    moved = case.weight_bytes + 2 * case.gradient_bytes
    if stack.deepspeed:
        moved = moved + at.constants.deepspeed_gradient_bytes
    return np.where(np.asarray(case.micro_batches) > 1, moved * layer_parameters(case) / device.memory, 0.0)


def _tensor_link(at: Setting) -> GroupLink:
    return at.link(at.case.tensor, at.strides.tensor)


def _tensor_seconds(at: Setting) -> Number:
    """Return the seconds of an all-reduce of one micro-batch's activations, or of the two halves that replace it."""
    case = at.case
    whole, sent = case.positions * case.hidden * case.weight_bytes, np.asarray(case.tensor_ratio)
    slower = at.constants.deepspeed_tensor if at.stack.deepspeed else 1.0
    # The scatter reads the whole tensor, the gather writes it, and each also writes or reads what is sent.
    encoding = np.where((sent != 1) & (np.asarray(case.tensor) > 1), at.device.moved((2 + 3 * sent) * whole, 4), 0.0)
    return slower * all_reduce_seconds(sent * whole, case.tensor, _tensor_link(at)) + encoding


def _transfer_seconds(at: Setting) -> Number:
    """Return the seconds to send one micro-batch's activations between stages. Slices of tensor ranks are gathered
    after the transfer."""
    case, stack = at.case, at.stack
    whole = case.positions * case.hidden * case.weight_bytes
    sliced = np.asarray(case.sequence_parallel) > 0
    slices = np.where(sliced | stack.split_transfers, case.tensor, 1)
    sent = send_seconds(whole / slices, at.link_to(case.pipeline, at.strides.pipeline))
    gathered = np.where(sliced, 0.0, all_gather_seconds(whole, slices, _tensor_link(at)))
    return np.where(np.asarray(case.pipeline) > 1, sent + gathered, 0.0)


def _layer_gathers(at: Setting, forward: Number, backward: Number) -> tuple[Number, Number]:
    """Return the exposed seconds of ZeRO stage 3 in a layer, forward and backward: the weights are gathered for each
    pass, and the gradients are reduce-scattered in the backward."""
    case = at.case
    asked = np.asarray(case.zero) >= 3
    if not asked.any():
        return 0.0, 0.0
    matrices = case.of_a_layer(lambda layer: float(sum(len(row.shape) > 1 for row in layer.rows)))
    common, experts = layer_parameters(case), layer_experts(case)
    gather, scatter = _sharded_seconds(at, common - experts, matrices, case.sharers, at.strides.sharers)
    if np.any(experts):
        group = case.expert_sharers, at.strides.expert_sharers
        of_experts = _sharded_seconds(at, experts, EXPERT_MATRICES, *group)
        apart = np.asarray(experts) > 0  # Other plans of the case may have no collectives of experts.
        gather, scatter = gather + apart * of_experts[0], scatter + apart * of_experts[1]
    if at.stack.gathers_by_parameter:
        again = recomputed_share(case) * (np.asarray(case.recompute) == LAYER)
        return np.where(asked, gather, 0.0), np.where(asked, (1 + again) * gather + scatter, 0.0)

    def added(work: Number, moving: Number) -> Number:
        return np.where(asked, at.added(work, moving), 0.0)

    return added(forward, gather), added(backward, gather + scatter)


def _table_traffic(at: Setting, concurrent_seconds: Number) -> tuple[Number, Number]:
    """Return the exposed seconds of ZeRO stage 3 for the token table: one gather without overlap, and one reduction of
    its gradient during the work that follows."""
    asked = np.asarray(at.case.zero) >= 3
    if not asked.any():
        return 0.0, 0.0
    gather, scatter = _sharded_seconds(at, table_parameters(at.case), 1, at.case.sharers, at.strides.sharers)
    shown = scatter if at.stack.gathers_by_parameter else at.added(concurrent_seconds, scatter)
    return np.where(asked, gather, 0.0), np.where(asked, shown, 0.0)


def _sharded_seconds(
    at: Setting, elements: Number, matrices: Number, sharers: Number, stride: Number
) -> tuple[Number, Number]:
    """Return the seconds to gather the weights of `elements` parameters in a sharding group, and to reduce-scatter
    their gradients.

    A stack that gathers by parameter starts one collective per matrix. DeepSpeed also fills the output of a gather with
    zeros first, and PyTorch copies each rank's part out of the buffer of a gather or into that of a reduction.
    """
    case, link = at.case, at.link(sharers, stride)
    narrow = case.float8 * case.float8_gathered
    weights = elements * (narrow + (1 - narrow) * case.weight_bytes * case.weight_ratio)
    gradients = elements * case.reduction_bytes * case.gradient_ratio
    gather = all_gather_seconds(weights, sharers, link)
    scatter = all_gather_seconds(gradients, sharers, link)
    if not at.stack.gathers_by_parameter:
        return gather, scatter
    starts = (matrices - 1) * all_gather_seconds(0.0, sharers, link)
    parts = matrices * sharers
    copied = at.device.moved(weights, matrices) + at.device.moved(2 * weights, parts)
    return gather + starts + copied, scatter + starts + at.device.moved(2 * gradients, parts)


def expert_seconds(at: Setting) -> tuple[Number, Number, Number]:
    """Return the exposed seconds in which expert ranks exchange tokens in a layer, forward, backward and in a repeated
    forward: the numbers of tokens, the tokens on their way to their experts, and the results on their way back, which a
    repeated forward does not need."""
    if not np.any(np.asarray(at.case.expert) > 1):
        return 0.0, 0.0, 0.0
    out, backward, back = of_a_layer(at.case, lambda layer: _dispatch_seconds(at, layer))
    return out + back, backward, out


def _dispatch_seconds(at: Setting, layer: Layer) -> tuple[Number, Number, Number]:
    """Return the seconds on the way out, of the backward, and on the way back."""
    case = at.case
    out: Number = 0.0
    backward: Number = 0.0
    back: Number = 0.0
    for half in layer.halves.values():
        found = half.dispatched(case)
        if found is None:
            continue
        sent = case.positions * found.rows * found.columns * case.weight_bytes
        once, counts = (
            exchange_seconds(at.machine, moved, case.expert, at.strides.expert, at.constants.fabric)
            for moved in (sent, COUNT_BYTES * found.experts)
        )
        shared = [product_seconds(product, case, at.device) for product in half.beside_dispatch(case)]
        out = out + counts + at.added(sum(f for f, _ in shared), once)
        backward, back = backward + at.added(sum(b for _, b in shared), once) + once, back + once
    return out, backward, back


def context_seconds(at: Setting) -> tuple[Number, Number]:
    """Return the exposed seconds of context parallelism in a layer, forward and backward: keys and values around a
    ring, or all-to-all exchanges of heads for positions (Ulysses)."""
    case, ranks = at.case, np.asarray(at.case.context)
    if (ranks == 1).all():
        return 0.0, 0.0
    sent = case.of_a_layer(lambda layer: sum(e.into + e.out for e in _exchanged(layer, case)))
    ring_sent = case.of_a_layer(lambda layer: sum(e.ring for e in _exchanged(layer, case)))
    heads = case.positions * sent * case.weight_bytes
    exchange = 2 * exchange_seconds(at.machine, heads / 2, case.context, at.strides.context, at.constants.fabric)
    ring_forward, ring_backward = _ring_seconds(at, case.positions * ring_sent)
    ring = np.asarray(case.ring) > 0
    forward = np.where(ring, ring_forward, exchange) * (ranks > 1)
    backward = np.where(ring, ring_backward, exchange) * (ranks > 1)
    return forward, backward


def _exchanged(layer: Layer, case: Case) -> list[Exchanged]:
    found = (half.exchanged(case) for half in layer.halves.values())
    return [each for each in found if each is not None]


def _ring_seconds(at: Setting, elements: Number) -> tuple[Number, Number]:
    """Return the exposed seconds of ring attention. elements: of a rank's keys and values.

    Attention overlaps with the transfer of the next keys and values. Their gradients, of at least 4 bytes per element,
    follow one turn later, and no work overlaps with the last transfer.
    """
    case, ranks = at.case, np.asarray(at.case.context)
    link = at.link_to(case.context, at.strides.context)
    keys = send_seconds(elements * case.weight_bytes, link)
    wide = send_seconds(elements * np.maximum(4, case.weight_bytes), link)
    forward, backward = (core / ranks for core in attention_seconds(case, at.device))  # seconds of one turn

    def added(work: Number, moving: Number) -> Number:
        return at.added(work, moving) if at.stack.overlaps_context else moving

    inner = (ranks - 2) * added(backward, keys + wide)
    return (ranks - 1) * added(forward, keys), added(backward, keys) + inner + added(backward, wide) + wide
