"""Seconds after the last micro-batch: gradients summed over replicas, the update, weights gathered, as far as the
work beside them does not hide it."""

from typing import NamedTuple

import numpy as np

from trivium.cost.bucket_sizes import bucket_limit, elements_of_rank
from trivium.cost.case import Case
from trivium.cost.collectives import all_gather_seconds, all_reduce_seconds, send_seconds
from trivium.cost.prices import Prices
from trivium.cost.rank_parameters import rank_parameters, table_parameters
from trivium.cost.setting import Setting
from trivium.cost.stages import layers_by_stage, layers_of_ranks
from trivium.plan.layers.part import Number
from trivium.plan.plan import Plan

# An optimizer moves per element that it owns, besides the states; per state of it, read and written; and per element
# that it holds.
SHARDED_BYTES, STATE_BYTES, WHOLE_BYTES = 22.0, 8.0, 10.0
ONE_PASS_BYTES = 12.0  # the first where it is compiled: one pass over state and 16-bit gradients and weights
AGREED_BYTES = 40  # loss, norm, and what is carried along
STEP_OPERATIONS = 100  # launched once a step, beside the layers'


class Fullest(NamedTuple):
    """elements: trained parameters of the rank that has most. layers: of the first, whose backward is last."""

    elements: Number
    layers: Number


class Halves(NamedTuple):
    """Seconds of one reduction of a rank's gradients, and of one gather of its weights; of an all-reduce the halves."""

    reduce: Number
    gather: Number


def fullest_of(case: Case) -> Fullest:
    """Of balanced plans; padding is left out."""
    first, middle, last = layers_of_ranks(case)
    alone, folded = np.asarray(case.pipeline) == 1, np.asarray(case.ends_together) > 0
    ranks = (
        rank_parameters(case, first, 1, alone | folded),
        rank_parameters(case, middle, 0, 0),
        np.where(alone | folded, 0, rank_parameters(case, last, 0, 1)),
    )
    most = np.maximum(np.maximum(ranks[0], np.where(alone, 0, ranks[1])), ranks[2])
    return Fullest(most * case.trained, first)


def fullest_of_plan(plan: Plan) -> Fullest:
    """Of any plan, as its buckets are."""
    elements = max(elements_of_rank(plan, rank).trained for rank in range(plan.layout.pipeline))
    layers = layers_by_stage(plan)
    return Fullest(elements, sum(len(layers[stage]) for stage in plan.stages_of(0)))


def data_seconds(at: Setting, pieces: Prices, fullest: Fullest) -> Number:
    """Gradients summed over replicas, among sharers and then among holders, weights gathered (ZeRO), the sum of the two
    uses of a tied table, and what all ranks agree on. At stage 3 the traffic of sharers is that of layers."""
    of_layers = np.asarray(at.case.zero) >= 3
    shown = np.where(of_layers, _shown_of_copies(at, pieces, fullest), _shown(at, pieces, fullest))
    return shown + _ends_seconds(at) + _agreement_seconds(at)


def optimizer_seconds(at: Setting, fullest: Fullest) -> Number:
    """State read and written, weights and gradients of the whole rank, and the operations of a step."""
    case, device, elements = at.case, at.device, fullest.elements
    owned = elements / np.where(np.asarray(case.zero) >= 1, case.sharers, 1)
    held = elements / np.where(np.asarray(case.zero) >= 3, case.sharers, 1)
    sharded = (ONE_PASS_BYTES if at.stack.compiled else SHARDED_BYTES) + STATE_BYTES * np.asarray(case.states)
    seconds = device.moved(sharded * owned + WHOLE_BYTES * held, 0.0)
    if np.any(case.matrices):
        seconds = seconds + _matrix_seconds(at, fullest)
    if at.stack.deepspeed:
        seconds = seconds + at.constants.deepspeed_step_seconds * elements
    # In a step that is replayed these wait for nobody, but are operations on the device.
    each = np.where(at.is_replayed, at.constants.operation_seconds, at.constants.launch_seconds)
    return seconds + STEP_OPERATIONS * each


def _matrix_seconds(at: Setting, fullest: Fullest) -> Number:
    """Updates of whole matrices, of which each rank computes its part, and their way there and back, among sharers and
    among tensor ranks."""
    case, device = at.case, at.device
    sharers = np.where(np.asarray(case.zero) >= 1, case.sharers, 1)
    flops = case.matrix_flops / (case.pipeline * case.tensor * sharers)
    own = case.matrices * fullest.elements / sharers * case.master_bytes
    among_sharers = all_gather_seconds(own, sharers, at.road(sharers, at.strides.sharers))
    among_tensor = all_gather_seconds(own, case.tensor, at.road(case.tensor, at.strides.tensor))
    found: Number = flops / (device.peak * device.gemm) + 2 * (among_sharers + among_tensor)
    return found


def _shown(at: Setting, pieces: Prices, fullest: Fullest) -> Number:
    """What the traffic of replicas adds to a step, below ZeRO stage 3."""
    (reduce, gather), copies = _halves(at, fullest.elements), _copies_seconds(at, fullest.elements)
    zero, stack = np.asarray(at.case.zero), at.stack
    often = (zero == 2) & stack.reduces_often
    if not stack.overlaps_data:
        return reduce * np.where(often, at.case.micro_batches, 1) + copies + gather
    forward, backward = (fullest.layers * p.total for p in (pieces.layer_forward, pieces.layer_backward))
    whole = zero == 0  # one all-reduce, which ends before the update
    moving = np.where(whole, reduce + gather, reduce + copies)
    # A recorded backward is over before anything of it is reduced.
    reduced = np.where(at.is_replayed, moving, _beside_last_backward(at, pieces, fullest, moving))
    earlier = np.where(often, (at.case.micro_batches - 1) * at.added(forward + backward, reduce), 0.0)
    next_to_it = optimizer_seconds(at, fullest) if stack.gathers_with_update else forward * _micro_batches_beside(at)
    return reduced + earlier + np.where(whole, 0.0, at.added(next_to_it, gather))


def _shown_of_copies(at: Setting, pieces: Prices, fullest: Fullest) -> Number:
    """What the traffic of holders adds to a step, at ZeRO stage 3."""
    copies = _copies_seconds(at, fullest.elements)
    return _beside_last_backward(at, pieces, fullest, copies) if at.stack.overlaps_data else copies


def _beside_last_backward(at: Setting, pieces: Prices, fullest: Fullest, moving: Number) -> Number:
    """What traffic of gradients adds to the backward that completes them; some are complete only after it."""
    late = moving * _late_share(at, fullest.elements)
    window = fullest.layers * _micro_batches_beside(at) * pieces.layer_backward.total
    return at.added(window, moving - late) + late


def _micro_batches_beside(at: Setting) -> Number:
    """Return beside how many micro-batches a rank's gradients are reduced, and its weights gathered.

    Interleaved, a rank takes each chunk's last `pipeline` micro-batches in a row before the next chunk's. So the first
    chunk is complete, and under way, that many micro-batches before the last.
    """
    case = at.case
    interleaved = (np.asarray(case.chunks) > 1) & at.stack.reduces_by_chunk
    return np.where(interleaved, np.minimum(case.pipeline, case.micro_batches), 1)


def _halves(at: Setting, elements: Number) -> Halves:
    case = at.case
    road = at.road(case.sharers, at.strides.sharers)
    starts = (_buckets(at, elements) - 1) * all_gather_seconds(0.0, case.sharers, road)
    reduce = all_gather_seconds(elements * case.reduction_bytes, case.sharers, road) + starts
    gather = all_gather_seconds(elements * case.weight_bytes, case.sharers, road) + starts
    return Halves(reduce, np.where(np.asarray(case.zero) >= 1, gather, reduce))


def _copies_seconds(at: Setting, elements: Number) -> Number:
    """Of the sum of a rank's slice of the gradients over its holders, where there are several copies."""
    case = at.case
    road = at.road(case.copies, at.strides.holders)
    starts = (_buckets(at, elements) - 1) * all_reduce_seconds(0.0, case.copies, road)
    return all_reduce_seconds(elements / case.sharers * case.reduction_bytes, case.copies, road) + starts


def _late_share(at: Setting, elements: Number) -> Number:
    """Of a rank's gradients, those of the table of tokens, which the last of all backwards completes. Of published
    stacks the learned overlap says it."""
    return np.minimum(1.0, table_parameters(at.case) / elements) if at.stack.buckets else 0.0


def _ends_seconds(at: Setting) -> Number:
    """Both uses of a tied table, summed over the first and the last rank; the table of a head that all ranks take in
    turns, over these. Ours sums them last, so where each replica has a slice, that alone; the published stacks before
    anything is sharded."""
    case = at.case
    sliced = (np.asarray(case.zero) >= 1) & at.stack.buckets
    owned = np.where(sliced, case.sharers, 1)
    table = table_parameters(case) / owned * case.gradient_bytes
    apart = (np.asarray(case.tied) > 0) & (np.asarray(case.pipeline) > 1) & (np.asarray(case.ends_together) == 0)
    of_two = np.where(apart, send_seconds(table, at.road_to(case.pipeline, at.strides.pipeline)), 0.0)
    of_all = all_reduce_seconds(table, case.pipeline, at.road(case.pipeline, at.strides.pipeline))
    return np.where(np.asarray(case.turns) > 0, of_all, of_two)


def _buckets(at: Setting, elements: Number) -> Number:
    """In how many parts a rank's gradients are summed, each with a start of its own; a tied table is one."""
    if not at.stack.buckets:
        return 1
    tied = np.asarray(at.case.tied)
    others = elements - tied * table_parameters(at.case)
    return tied + np.ceil(others / bucket_limit(at.case))


def _agreement_seconds(at: Setting) -> Number:
    """What all ranks agree on before the update, loss and norm of the gradient: a few numbers along each axis."""
    case, strides = at.case, at.strides
    axes = ((case.replicas, strides.replicas), (case.tensor, strides.tensor), (case.pipeline, strides.pipeline))
    seconds: Number = sum(all_reduce_seconds(AGREED_BYTES, n, at.road(n, stride)) for n, stride in axes)
    return seconds
