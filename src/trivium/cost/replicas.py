"""Seconds after the last micro-batch: gradients summed over replicas, the update, weights gathered, as far as the
work beside them does not hide it."""

from typing import NamedTuple

import numpy as np

from trivium.cost.case import Case, Number
from trivium.cost.collectives import all_gather_seconds, all_reduce_seconds, send_seconds
from trivium.cost.layer import layer_elements
from trivium.cost.prices import Prices, Setting, beside
from trivium.cost.stages import layers_of_ranks
from trivium.plan.buckets import BUCKET_ELEMENTS

SHARDED_BYTES, WHOLE_BYTES = 38.0, 10.0  # an optimizer moves per element it owns, and per element it holds
AGREED_BYTES = 40  # loss, norm, and what is carried along
STEP_OPERATIONS = 100  # launched once a step, beside the layers'


class Traffic(NamedTuple):
    """Seconds of one reduction of a rank's gradients, and of one gather of its weights; of an all-reduce the halves."""

    reduce: Number
    gather: Number


def data_seconds(at: Setting, pieces: Prices) -> Number:
    """Gradients summed over replicas, weights gathered (ZeRO), the sum of the two uses of a tied table, and what all
    ranks agree on."""
    case = at.case
    shared = (np.asarray(case.tied) > 0) & (np.asarray(case.pipeline) > 1)
    table = _table_elements(case) * case.gradient_bytes
    ends = np.where(shared, send_seconds(table, at.road_to(case.pipeline, at.strides.pipeline)), 0.0)
    return np.where(np.asarray(case.zero) >= 3, 0.0, _shown(at, pieces)) + ends + _agreement_seconds(at)


def optimizer_seconds(at: Setting) -> Number:
    """State read and written, weights and gradients of the whole rank, and the operations of a step."""
    case, device = at.case, at.device
    elements = rank_elements(case)
    owned = elements / np.where(np.asarray(case.zero) >= 1, case.replicas, 1)
    held = elements / np.where(np.asarray(case.zero) >= 3, case.replicas, 1)
    seconds = device.moved(SHARDED_BYTES * owned + WHOLE_BYTES * held, 0.0)
    if at.stack.deepspeed:
        seconds = seconds + at.constants.deepspeed_step_seconds * elements
    return seconds + STEP_OPERATIONS * at.constants.launch_seconds


def rank_elements(case: Case) -> Number:
    """Parameters of the fullest rank: its layers and the table of tokens."""
    first, middle, _ = layers_of_ranks(case)
    table = _table_elements(case)
    alone = np.asarray(case.pipeline) == 1
    tables = np.where(alone & (np.asarray(case.tied) == 0), 2, 1) * table
    return np.maximum(first * layer_elements(case) + tables, middle * layer_elements(case))


def _shown(at: Setting, pieces: Prices) -> Number:
    """What the traffic of replicas adds to a step, below ZeRO stage 3."""
    reduce, gather = _traffic(at)
    zero, stack = np.asarray(at.case.zero), at.stack
    often = (zero == 2) & stack.reduces_often
    if not stack.overlaps_data or at.machine.sharing == "shared":  # where the ranks' own cores move the bytes
        return reduce * np.where(often, at.case.micro_batches, 1) + gather
    first, _, _ = layers_of_ranks(at.case)
    forward, backward = (first * p.total for p in (pieces.layer_forward, pieces.layer_backward))
    whole = zero == 0  # one all-reduce, which ends before the update
    last = np.where(whole, reduce + gather, reduce)
    late = last * _late_share(at)
    hidden = _beside(at, backward, last - late) + late
    earlier = np.where(often, (at.case.micro_batches - 1) * _beside(at, forward + backward, reduce), 0.0)
    next_to_it = optimizer_seconds(at) if stack.gathers_with_update else forward
    return hidden + earlier + np.where(whole, 0.0, _beside(at, next_to_it, gather))


def _beside(at: Setting, work: Number, moving: Number) -> Number:
    """Seconds that traffic adds to work."""
    return beside(work, moving, at.constants.data_overlap) - work


def _traffic(at: Setting) -> Traffic:
    case, elements = at.case, rank_elements(at.case)
    road = at.road(case.replicas, at.strides.replicas)
    starts = (_buckets(at, elements) - 1) * all_gather_seconds(0.0, case.replicas, road)
    reduce = all_gather_seconds(elements * case.reduction_bytes, case.replicas, road) + starts
    gather = all_gather_seconds(elements * case.weight_bytes, case.replicas, road) + starts
    return Traffic(reduce, np.where(np.asarray(case.zero) >= 1, gather, reduce))


def _late_share(at: Setting) -> Number:
    """Of a rank's gradients, those of the table of tokens, which the last of all backwards completes. Of published
    stacks the learned overlap says it."""
    return _table_elements(at.case) / rank_elements(at.case) if at.stack.buckets else 0.0


def _table_elements(case: Case) -> Number:
    return case.vocabulary * case.hidden / case.tensor


def _buckets(at: Setting, elements: Number) -> Number:
    """In how many parts a rank's gradients are summed, each with a start of its own; a tied table is one."""
    if not at.stack.buckets:
        return 1
    tied = np.asarray(at.case.tied)
    others = elements - tied * _table_elements(at.case)
    return tied + np.ceil(others / BUCKET_ELEMENTS)


def _agreement_seconds(at: Setting) -> Number:
    """What all ranks agree on before the update, loss and norm of the gradient: a few numbers along each axis."""
    case, strides = at.case, at.strides
    axes = (
        (case.replicas, strides.replicas),
        (case.tensor, strides.tensor),
        (case.pipeline, strides.pipeline),
    )
    seconds: Number = sum(all_reduce_seconds(AGREED_BYTES, n, at.road(n, stride)) for n, stride in axes)
    return seconds
