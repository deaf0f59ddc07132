"""Seconds of a step, for one plan or thousands at once, in closed form.

The slowest rank sets the pace of the pipeline, the others its filling; then gradients are reduced over replicas, and
the optimizer runs. Exact for equal stages of the plain schedules; cost/timeline.py simulates the others.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trivium.cost.case import Case, Number
from trivium.cost.collectives import Strides, all_gather_seconds, all_reduce_seconds, send_seconds
from trivium.cost.constants import Constants, shipped_constants
from trivium.cost.hardware import Machine
from trivium.cost.layer import layer_elements
from trivium.cost.prices import Piece, Prices, Setting, beside, prices, setting
from trivium.cost.sharing import on_shared_cores
from trivium.cost.stack import OURS, Stack, stack_named
from trivium.plan.buckets import BUCKET_ELEMENTS

# Schedules as numbers, for arrays of plans.
SCHEDULES = {"gpipe": 0, "1f1b": 1, "interleaved": 2, "zb-h1": 3, "zb-v": 4, "1f1b-split": 5, "given": 1}
SHARDED_BYTES, WHOLE_BYTES = 38.0, 10.0  # an optimizer moves per element it owns, and per element it holds
AGREED_BYTES = 40  # loss, norm, and what is carried along
STEP_OPERATIONS = 100  # launched once a step, beside the layers'


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step, part by part; each a number or an array with one entry per plan. They add up."""

    compute: Number
    tensor_collectives: Number
    context_collectives: Number
    bubble: Number
    pipeline_transfers: Number
    data_collectives: Number
    optimizer: Number

    @property
    def seconds(self) -> Number:
        total: Number = sum(vars(self).values())
        return total


def step_seconds(
    case: Case,
    machine: Machine,
    stack: Stack | None = None,
    constants: Constants | None = None,
    *,
    schedule: Number = 1,
    strides: Strides | None = None,
) -> StepSeconds:
    """Price every plan of a case. stack: by default ours; constants: by default the shipped ones.

    schedule: of SCHEDULES, one number or one per plan. strides: by default those of the default order of axes.
    Where ranks share devices, crowding is part of the result.
    """
    stack = stack or stack_named(OURS)
    at = setting(case, machine, stack, constants or shipped_constants(), strides)
    pieces = prices(at)
    ranks = _rank_work(case, pieces)
    busiest = ranks.busiest
    m = np.asarray(case.micro_batches)
    blocking = stack.blocking_transfers
    without = _pipeline(case, ranks, 0.0, schedule, blocking=blocking)
    with_transfers = _pipeline(case, ranks, pieces.transfer, schedule, blocking=blocking)
    crowd = _crowding(machine, case)
    work, moving = busiest.times(m), with_transfers - without
    bubble = np.maximum(0.0, without - work.total)
    if machine.sharing == "shared":
        mean = ranks.whole.times(m / case.pipeline)
        core_share = at.constants.core_share
        work, bubble, moving = on_shared_cores(machine, case, mean, with_transfers, moving, core_share)
    factor = stack.factor
    return StepSeconds(
        compute=factor * work.compute,
        tensor_collectives=factor * work.tensor,
        context_collectives=factor * work.context,
        bubble=factor * bubble,
        pipeline_transfers=factor * moving,
        data_collectives=factor * (work.gathers + crowd * data_seconds(at, pieces)),
        optimizer=factor * crowd * optimizer_seconds(at),
    )


class RankWork(NamedTuple):
    """One micro-batch through all stages of a rank: the first, one in the middle, the last; and through all ranks."""

    first: Piece
    middle: Piece
    last: Piece
    whole: Piece
    forward_share: Number  # of a layer's time

    @property
    def busiest(self) -> Piece:
        """The one that takes longest."""
        kinds = (self.first, self.middle, self.last)
        totals = np.stack(np.broadcast_arrays(*(kind.total for kind in kinds)))
        which = totals.argmax(axis=0)
        return Piece(*(_choose(which, parts) for parts in zip(*kinds, strict=True)))


def _choose(which: Any, parts: tuple[Number, ...]) -> Number:
    return np.select([which == 0, which == 1], [parts[0], parts[1]], parts[2])


def layers_of_ranks(case: Case) -> tuple[Number, Number, Number]:
    """Layers of the first rank, of a middle one, and of the last, balanced but for the ends' allowance."""
    p = np.asarray(case.pipeline)
    lighter = np.where(p > 1, case.ends_lighter, 0)
    most = np.ceil((np.asarray(case.layers) + 2 * lighter) / p)
    fewest = np.floor((np.asarray(case.layers) + 2 * lighter) / p)
    return most - lighter, most, fewest - lighter


def _rank_work(case: Case, pieces: Prices) -> RankWork:
    first, middle, last = layers_of_ranks(case)
    alone, inner = np.asarray(case.pipeline) == 1, np.asarray(case.pipeline) > 2
    forward = pieces.layer_forward.total
    return RankWork(
        first=pieces.layer.times(first).plus(pieces.first).plus(pieces.last.times(alone)),
        middle=pieces.layer.times(middle * inner),
        last=pieces.layer.times(last * ~alone).plus(pieces.last.times(~alone)),
        whole=pieces.layer.times(np.asarray(case.layers)).plus(pieces.first).plus(pieces.last),
        forward_share=forward / (forward + pieces.layer_backward.total),
    )


def _pipeline(case: Case, ranks: RankWork, transfer: Number, schedule: Number, *, blocking: bool) -> Number:
    """Seconds of all micro-batches."""
    m, p, v = (np.asarray(n) for n in (case.micro_batches, case.pipeline, case.chunks))
    name, forward = np.asarray(schedule), ranks.forward_share
    busiest, whole = ranks.busiest.total, ranks.whole.total
    if blocking:  # a rank pays for each of its transfers, one forward and one backward
        period = busiest + np.where(p > 1, 2 * v * transfer, 0.0)
    else:  # a micro-batch goes forth and back while as many as are in flight go through the first rank
        flying = np.where(v > 1, (v + 1) * p / v, p)
        there_and_back = whole + 2 * (p * v - 1) * transfer
        streams = (name == SCHEDULES["gpipe"]) | (m < p)
        period = np.maximum(busiest, np.where(streams, 0.0, there_and_back / flying))
    filling = (whole - busiest) / v
    # Nobody waits for weight gradients: of F + I + W are left F + I; and where they wait until others fill the
    # pipeline, F + I - W. I and W take as long.
    inputs = (1 - forward) / 2
    filling = np.where(name == SCHEDULES["1f1b-split"], filling * (forward + inputs), filling)
    filling = np.where(name == SCHEDULES["zb-h1"], filling * forward, filling)
    filling = np.where(name == SCHEDULES["zb-v"], filling * np.maximum(0, forward - inputs), filling)
    first = period if blocking else busiest
    seconds: Number = first + (m - 1) * period + np.where(p > 1, filling + 2 * (p - 1) * transfer, 0.0)
    return seconds


def rank_elements(case: Case) -> Number:
    """Parameters of the fullest rank: its layers and the table of tokens."""
    first, middle, _ = layers_of_ranks(case)
    table = case.vocabulary * case.hidden / case.tensor
    alone = np.asarray(case.pipeline) == 1
    tables = np.where(alone & (np.asarray(case.tied) == 0), 2, 1) * table
    return np.maximum(first * layer_elements(case) + tables, middle * layer_elements(case))


def data_seconds(at: Setting, pieces: Prices) -> Number:
    """Gradients summed over replicas, weights gathered (ZeRO), the sum of the two uses of a tied table, and what all
    ranks agree on."""
    case, zero = at.case, np.asarray(at.case.zero)
    elements = rank_elements(case)
    road = at.road(case.replicas, at.strides.replicas)
    starts = (_buckets(at, elements) - 1) * all_gather_seconds(0.0, case.replicas, road)
    reduce = all_gather_seconds(elements * case.reduction_bytes, case.replicas, road) + starts
    gather = all_gather_seconds(elements * case.weight_bytes, case.replicas, road) + starts
    gather = np.where(zero >= 1, gather, reduce)  # an all-reduce is a reduce-scatter and an all-gather
    reduce = reduce * np.where(zero == 2, case.micro_batches, 1)
    if at.stack.overlaps_data:
        first, _, _ = layers_of_ranks(case)
        backward, forward = (
            first * p.total / case.chunks for p in (pieces.layer_backward, pieces.layer_forward)
        )
        overlap = at.constants.data_overlap
        apart = beside(forward, gather, overlap) - forward + beside(backward, reduce, overlap) - backward
        # Without ZeRO, one all-reduce ends before the update.
        together = beside(backward, reduce + gather, overlap) - backward
        reduce, gather = np.where(zero >= 1, apart, together), 0.0
    shared = (np.asarray(case.tied) > 0) & (np.asarray(case.pipeline) > 1)
    table = case.vocabulary * case.hidden / case.tensor * case.gradient_bytes
    ends = np.where(shared, send_seconds(table, at.road_to(case.pipeline, at.strides.pipeline)), 0.0)
    return np.where(zero >= 3, 0.0, reduce + gather) + ends + _agreement_seconds(at)


def _buckets(at: Setting, elements: Number) -> Number:
    """In how many parts a rank's gradients are summed, each with a start of its own; a tied table is one."""
    if not at.stack.buckets:
        return 1
    tied = np.asarray(at.case.tied)
    others = elements - tied * at.case.vocabulary * at.case.hidden / at.case.tensor
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


def _crowding(machine: Machine, case: Case) -> Number:
    if machine.sharing == "exclusive":
        return 1.0
    return np.maximum(1.0, np.asarray(case.ranks) / machine.devices)
