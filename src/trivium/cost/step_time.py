"""Seconds of a step, for one plan or thousands at once, in closed form.

The slowest rank sets the pace of the pipeline, the others its filling; then gradients are reduced over replicas, and
the optimizer runs. Exact for equal stages of the plain schedules; cost/timeline.py simulates the others.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trivium.cost.case import Case
from trivium.cost.collectives import Strides
from trivium.cost.constants import Constants, shipped_constants
from trivium.cost.hardware import Machine
from trivium.cost.prices import Piece, Prices, prices
from trivium.cost.replicas import Fullest, data_seconds, fullest_of, optimizer_seconds
from trivium.cost.setting import setting
from trivium.cost.sharing import on_shared_cores
from trivium.cost.stack import OURS, Stack, stack_named
from trivium.cost.stages import layers_of_ranks
from trivium.plan.layers.part import Number
from trivium.plan.schedule import SCHEDULE_NAMES

# Schedules as numbers, for arrays of plans; a given one is priced as 1F1B, and as ZB-V the one whose heads are taken in
# turns: both are simulated where a single plan is priced.
SCHEDULES = {name: number for number, name in enumerate(SCHEDULE_NAMES)} | {
    "given": SCHEDULE_NAMES.index("1f1b"),
    "zb-turns": SCHEDULE_NAMES.index("zb-v"),
}


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
    fullest: Fullest | None = None,
) -> StepSeconds:
    """Price every plan of a case. stack: by default ours; constants: by default the shipped ones.

    schedule: of SCHEDULES, one number or one per plan. strides: by default those of the default order of axes.
    fullest: by default of balanced plans.
    Where ranks share devices, crowding is part of the result.
    """
    stack = stack or stack_named(OURS)
    at = setting(case, machine, stack, constants or shipped_constants(), strides)
    fullest = fullest or fullest_of(case)
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
        data_collectives=factor * (work.gathers + crowd * data_seconds(at, pieces, fullest)),
        optimizer=factor * crowd * optimizer_seconds(at, fullest),
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
    seconds = first + (m - 1) * period + np.where(p > 1, filling + 2 * (p - 1) * transfer, 0.0)
    # Where few micro-batches put weight gradients off, the way there and back of one after the other is longer.
    stage, path = busiest / v, forward + inputs
    way = path * (whole + (m - 1) * stage) + inputs * stage + 2 * (p * v - 1) * transfer
    waits = (name == SCHEDULES["zb-h1"]) | (name == SCHEDULES["zb-v"])
    whole_step: Number = np.where(waits & (p > 1), np.maximum(seconds, way), seconds)
    return whole_step


def _crowding(machine: Machine, case: Case) -> Number:
    if machine.sharing == "exclusive":
        return 1.0
    return np.maximum(1.0, np.asarray(case.ranks) / machine.devices)
