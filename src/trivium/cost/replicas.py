"""Exposed seconds after the last micro-batch: gradient reduction, optimizer step and weight all-gather."""

from typing import NamedTuple

import numpy as np

from trivium.cost.case import Case
from trivium.cost.collectives import all_gather_seconds, all_reduce_seconds, send_seconds
from trivium.cost.prices import Prices
from trivium.cost.rank_parameters import elements_of_rank, layer_experts, rank_parameters, table_parameters
from trivium.cost.setting import Setting
from trivium.cost.stages import layers_by_stage, layers_of_ranks
from trivium.plan.buckets import bucket_elements
from trivium.plan.layers.part import Number
from trivium.plan.plan import Plan

# Bytes that an optimizer step moves: per owned element without states, per state of it, and per element of the rank.
OWNED_BYTES, STATE_BYTES, HELD_BYTES = 22.0, 8.0, 10.0
COMPILED_OWNED_BYTES = 12.0  # OWNED_BYTES of a compiled step: one pass over state, 16-bit gradients and weights
AGREEMENT_BYTES = 40  # loss, gradient norm and flags, in the all-reduce of each step
STEP_OPERATIONS = 100  # launched once per step, in addition to those of the layers


class Fullest(NamedTuple):
    """elements: trained parameters of the rank with most. layers: layers of the first rank, whose backward ends last.
    experts: those of the elements that expert ranks divide."""

    elements: Number
    layers: Number
    experts: Number = 0.0

    def sharded(self, case: Case) -> Number:
        """Return the elements of one rank if its sharding groups divide them."""
        common = (self.elements - self.experts) / case.sharers
        return common + self.experts / case.expert_sharers if np.any(self.experts) else common


class Halves(NamedTuple):
    """Seconds to reduce a rank's gradients and to gather its weights once, or the two halves of an all-reduce."""

    reduce: Number
    gather: Number


def fullest_of(case: Case) -> Fullest:
    """Return the fullest rank of balanced plans, without padding."""
    first, middle, last = layers_of_ranks(case)
    alone, folded = np.asarray(case.pipeline) == 1, np.asarray(case.ends_together) > 0
    ranks = (
        rank_parameters(case, first, 1, alone | folded),
        rank_parameters(case, middle, 0, 0),
        np.where(alone | folded, 0, rank_parameters(case, last, 0, 1)),
    )
    most = np.maximum(np.maximum(ranks[0], np.where(alone, 0, ranks[1])), ranks[2])
    held = np.where(most == ranks[0], first, np.where(most == ranks[2], last, middle))  # layers of the fullest rank
    return Fullest(most * case.trained, first, layer_experts(case) * held * case.trained)


def fullest_of_plan(plan: Plan) -> Fullest:
    """Return the fullest rank of any plan, from its buckets."""
    every = (elements_of_rank(plan, rank) for rank in range(plan.layout.pipeline))
    most = max(every, key=lambda elements: elements.trained)
    layers = layers_by_stage(plan)
    return Fullest(most.trained, sum(len(layers[stage]) for stage in plan.stages_of(0)), most.trained_experts)


def data_seconds(at: Setting, pieces: Prices, fullest: Fullest) -> Number:
    """Return the exposed seconds of the gradient reduction in the sharding and replicate groups, the weight all-gather
    (ZeRO), the sum of the two uses of a tied table, and the agreement of all ranks. At stage 3 the layers' prices
    include the traffic of the sharding group."""
    of_layers = np.asarray(at.case.zero) >= 3
    shown = np.where(of_layers, _shown_of_copies(at, pieces, fullest), _shown(at, pieces, fullest))
    return shown + _ends_seconds(at) + _agreement_seconds(at)


def optimizer_seconds(at: Setting, fullest: Fullest) -> Number:
    """Return the seconds of the optimizer step: memory traffic and launches, or the copies of its state from the host
    and back, in both directions at once, if these take longer."""
    case, device, elements = at.case, at.device, fullest.elements
    sharded, zero = fullest.sharded(case), np.asarray(case.zero)
    owned, held = np.where(zero >= 1, sharded, elements), np.where(zero >= 3, sharded, elements)
    of_owned = (COMPILED_OWNED_BYTES if at.stack.compiled else OWNED_BYTES) + STATE_BYTES * np.asarray(case.states)
    seconds = device.moved(of_owned * owned + HELD_BYTES * held, 0.0)
    if np.any(case.matrices):
        seconds = seconds + _matrix_seconds(at, fullest)
    if at.stack.deepspeed:
        seconds = seconds + at.constants.deepspeed_step_seconds * elements
    # In a replayed step, an operation costs time on the device instead of a launch by the host.
    each = np.where(at.is_replayed, at.constants.operation_seconds, at.constants.launch_seconds)
    found: Number = seconds + STEP_OPERATIONS * each
    if not np.any(case.state_away):
        return found
    masters = np.where(np.asarray(case.weight_bytes) < np.asarray(case.master_bytes), case.master_bytes, 0)
    moved = case.state_away * owned * (masters + case.master_bytes * np.asarray(case.states))
    copied = moved / at.machine.host_bandwidth
    return np.maximum(found, copied) if at.hides else found + 2 * copied


def _matrix_seconds(at: Setting, fullest: Fullest) -> Number:
    """Return the seconds of matrix updates, of which each rank computes a part, and of the exchange of directions and
    updates in the sharding group and among tensor ranks."""
    case, device = at.case, at.device
    shares = np.asarray(case.zero) >= 1
    sharers = np.where(shares, case.sharers, 1)
    flops = case.matrix_flops / (case.pipeline * case.tensor * sharers)
    own = case.matrices * np.where(shares, fullest.sharded(case), fullest.elements) * case.master_bytes
    among_sharers = all_gather_seconds(own, sharers, at.link(sharers, at.strides.sharers))
    among_tensor = all_gather_seconds(own, case.tensor, at.link(case.tensor, at.strides.tensor))
    found: Number = flops / (device.peak * device.gemm) + 2 * (among_sharers + among_tensor)
    return found


def _shown(at: Setting, pieces: Prices, fullest: Fullest) -> Number:
    """Return the exposed seconds of the replicas' traffic below ZeRO stage 3."""
    (reduce, gather), copies = _halves(at, fullest), _copies_seconds(at, fullest)
    zero, stack = np.asarray(at.case.zero), at.stack
    often = (zero == 2) & stack.reduces_often
    if not stack.overlaps_data:
        return reduce * np.where(often, at.case.micro_batches, 1) + copies + gather
    forward, backward = (fullest.layers * p.total for p in (pieces.layer_forward, pieces.layer_backward))
    whole = zero == 0  # a single all-reduce, which ends before the update
    moving = np.where(whole, reduce + gather, reduce + copies)
    reduced = _beside_last_backward(at, pieces, fullest, moving)
    earlier = np.where(often, (at.case.micro_batches - 1) * at.added(forward + backward, reduce), 0.0)
    next_to_it = forward * _micro_batches_beside(at)
    if stack.gathers_with_update:  # and a recorded forward waits for all weights
        next_to_it = np.where(at.is_replayed, 0.0, next_to_it) + optimizer_seconds(at, fullest)
    return reduced + earlier + np.where(whole, 0.0, at.added(next_to_it, gather))


def _shown_of_copies(at: Setting, pieces: Prices, fullest: Fullest) -> Number:
    """Return the exposed seconds of the replicate groups' traffic at ZeRO stage 3."""
    copies = _copies_seconds(at, fullest)
    return _beside_last_backward(at, pieces, fullest, copies) if at.stack.overlaps_data else copies


def _beside_last_backward(at: Setting, pieces: Prices, fullest: Fullest, moving: Number) -> Number:
    """Return the exposed seconds of gradient traffic during the last backward. Some gradients are complete only after
    it."""
    late = moving * _late_share(at, fullest.elements)
    window = fullest.layers * _micro_batches_beside(at) * pieces.layer_backward.total
    return at.added(window, moving - late) + late


def _micro_batches_beside(at: Setting) -> Number:
    """Return during how many micro-batches a rank's gradients are reduced and its weights gathered.

    An interleaved rank processes the last `pipeline` micro-batches of each chunk in a row, so the reduction of the
    first chunk starts that many micro-batches before the last.
    """
    case = at.case
    interleaved = (np.asarray(case.chunks) > 1) & at.stack.reduces_by_chunk
    return np.where(interleaved, np.minimum(case.pipeline, case.micro_batches), 1)


def _halves(at: Setting, fullest: Fullest) -> Halves:
    case, common = at.case, fullest.elements - fullest.experts
    found = _halves_in_group(at, common, case.sharers, at.strides.sharers)
    if not np.any(fullest.experts):
        return found
    experts = _halves_in_group(at, fullest.experts, case.expert_sharers, at.strides.expert_sharers)
    apart = np.asarray(fullest.experts) > 0  # Other plans of the case may have no collectives of experts.
    return Halves(*(a + apart * b for a, b in zip(found, experts, strict=True)))


def _halves_in_group(at: Setting, elements: Number, sharers: Number, stride: Number) -> Halves:
    case, link = at.case, at.link(sharers, stride)
    starts = (_buckets(at, elements) - 1) * all_gather_seconds(0.0, sharers, link)
    reduce = all_gather_seconds(elements * case.reduction_bytes * case.gradient_ratio, sharers, link) + starts
    gather = all_gather_seconds(elements * case.weight_bytes * case.weight_ratio, sharers, link) + starts
    return Halves(reduce, np.where(np.asarray(case.zero) >= 1, gather, reduce))


def _copies_seconds(at: Setting, fullest: Fullest) -> Number:
    """Return the seconds to sum a rank's gradient slice over its replicate group."""
    case = at.case
    link = at.link(case.copies, at.strides.holders)
    starts = (_buckets(at, fullest.elements) - 1) * all_reduce_seconds(0.0, case.copies, link)
    sent = fullest.sharded(case) * case.reduction_bytes * case.gradient_ratio
    return all_reduce_seconds(sent, case.copies, link) + starts


def _late_share(at: Setting, elements: Number) -> Number:
    """Return the share of a rank's gradients that belong to the token table, which the last of all backwards completes.
    Published stacks have a learned overlap instead."""
    return np.minimum(1.0, table_parameters(at.case) / elements) if at.stack.buckets else 0.0


def _ends_seconds(at: Setting) -> Number:
    """Return the seconds to sum both uses of a tied table over the first and the last rank, or the table of a
    round-robin head over all pipeline ranks. Trivium sums them last, so each replica sums only its slice if there are
    slices; the published stacks sum them before anything is sharded."""
    case = at.case
    sliced = (np.asarray(case.zero) >= 1) & at.stack.buckets
    owned = np.where(sliced, case.sharers, 1)
    table = table_parameters(case) / owned * case.gradient_bytes
    apart = (np.asarray(case.tied) > 0) & (np.asarray(case.pipeline) > 1) & (np.asarray(case.ends_together) == 0)
    of_two = np.where(apart, send_seconds(table, at.link_to(case.pipeline, at.strides.pipeline)), 0.0)
    of_all = all_reduce_seconds(table, case.pipeline, at.link(case.pipeline, at.strides.pipeline))
    return np.where(np.asarray(case.turns) > 0, of_all, of_two)


def _buckets(at: Setting, elements: Number) -> Number:
    """Return the number of gradient buckets of a rank, each with its own start-up; a tied table is one bucket."""
    if not at.stack.buckets:
        return 1
    tied = np.asarray(at.case.tied)
    others = np.maximum(0, elements - tied * table_parameters(at.case))
    return tied + np.ceil(others / bucket_elements(at.case.sharers))


def _agreement_seconds(at: Setting) -> Number:
    """Return the seconds to agree on loss and gradient norm before the update: a few numbers along each axis."""
    case, strides = at.case, at.strides
    axes = ((case.replicas, strides.replicas), (case.tensor, strides.tensor), (case.pipeline, strides.pipeline))
    seconds: Number = sum(all_reduce_seconds(AGREEMENT_BYTES, n, at.link(n, stride)) for n, stride in axes)
    return seconds
