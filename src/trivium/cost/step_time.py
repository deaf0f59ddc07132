"""Closed form of the seconds of a step, for one plan or thousands at once.

The slowest rank determines the pace of the pipeline, and all ranks determine the time to fill it. The gradient
reduction and the optimizer follow. The closed form is exact for equal stages of gpipe and 1F1B; cost/timeline.py
simulates others.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trivium.cost.case import Case
from trivium.cost.collectives import Strides
from trivium.cost.constants import Constants, shipped_constants
from trivium.cost.energy import busy_seconds
from trivium.cost.forward_pass import forward_passes_seconds
from trivium.cost.hardware import Machine
from trivium.cost.prices import Piece, Prices, prices
from trivium.cost.rank_work import RankWork, rank_work
from trivium.cost.replicas import Fullest, data_seconds, fullest_of, optimizer_seconds
from trivium.cost.setting import Setting, setting
from trivium.cost.sharing import on_shared_cores
from trivium.cost.stack import OURS, Stack, stack_named
from trivium.plan.layers.part import Number
from trivium.plan.schedule import SCHEDULE_NAMES

# Schedules as numbers, for arrays of plans. The closed form prices given rows as 1F1B and zb-turns as ZB-V; the
# simulation of a single plan follows their own order.
SCHEDULES = {name: number for number, name in enumerate(SCHEDULE_NAMES)} | {
    "given": SCHEDULE_NAMES.index("1f1b"),
    "zb-turns": SCHEDULE_NAMES.index("zb-v"),
}


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step by part; each a number or an array with one entry per plan. They add up to `seconds`."""

    compute: Number
    tensor_collectives: Number
    context_collectives: Number
    expert_collectives: Number
    bubble: Number
    pipeline_transfers: Number
    data_collectives: Number
    optimizer: Number
    host_copies: Number = 0.0  # of activations, between device and host
    forward_passes: Number = 0.0  # before the batch is trained on: they score it or count loads

    @property
    def seconds(self) -> Number:
        total: Number = sum(vars(self).values())
        return total


class Step(NamedTuple):
    """The parts of a step, and the seconds of it in which a device is busy (cost/energy.py)."""

    parts: StepSeconds
    busy: Number


def step(
    case: Case,
    machine: Machine,
    stack: Stack | None = None,
    constants: Constants | None = None,
    *,
    schedule: Number = 1,
    strides: Strides | None = None,
    fullest: Fullest | None = None,
) -> Step:
    """Price every plan of a case.

    stack: by default Trivium's. constants: by default the shipped ones. schedule: of SCHEDULES, one number or one per
    plan. strides: by default those of the default order of axes. fullest: by default the fullest ranks of balanced
    plans. If ranks share devices, the result includes the time in which they wait for each other.
    """
    stack = stack or stack_named(OURS)
    at = setting(case, machine, stack, constants or shipped_constants(), strides)
    fullest = fullest or fullest_of(case)
    pieces = prices(at)
    ranks, m = rank_work(case, pieces.layer, pieces.first, pieces.last), np.asarray(case.micro_batches)
    share = pieces.forward_share
    blocking = stack.blocking_transfers
    without, with_transfers = (
        _pipeline(case, ranks, share, transfer, schedule, blocking=blocking) for transfer in (0.0, pieces.transfer)
    )
    mean = ranks.whole.times(m / case.pipeline)
    return parts_of_step(at, pieces, fullest, ranks.busiest.times(m), mean, (without, with_transfers))


def parts_of_step(
    at: Setting, pieces: Prices, fullest: Fullest, work: Piece, mean: Piece, pipeline_seconds: tuple[Number, Number]
) -> Step:
    """Return a step from the duration of its pipeline.

    work: of the busiest pipeline rank. mean: the average over pipeline ranks. pipeline_seconds: without transfers, and
    with them.
    """
    busy = busy_seconds(at, pieces, fullest, mean)
    without, with_transfers = pipeline_seconds
    crowd, factor, moving = at.machine.crowding(at.case.ranks), at.stack.factor, with_transfers - without
    bubble = np.maximum(0.0, without - work.total)
    if at.machine.sharing == "shared":
        core_share = at.constants.core_share
        work, bubble, moving = on_shared_cores(at.machine, at.case, mean, with_transfers, moving, core_share)
    parts = StepSeconds(
        compute=factor * work.compute,
        tensor_collectives=factor * work.tensor,
        context_collectives=factor * work.context,
        expert_collectives=factor * work.expert,
        bubble=factor * bubble,
        pipeline_transfers=factor * moving,
        data_collectives=factor * (work.gathers + crowd * data_seconds(at, pieces, fullest)),
        optimizer=factor * (crowd * optimizer_seconds(at, fullest)),
        host_copies=factor * work.host,
        forward_passes=forward_passes_seconds(at, pieces),
    )
    return Step(parts, busy)


def _pipeline(
    case: Case, ranks: RankWork, forward: Number, transfer: Number, schedule: Number, *, blocking: bool
) -> Number:
    """Return the seconds of the pipeline for all micro-batches. forward: its share of a layer's time."""
    m, p, v = (np.asarray(n) for n in (case.micro_batches, case.pipeline, case.chunks))
    name = np.asarray(schedule)
    busiest, whole = ranks.busiest.total, ranks.whole.total
    if blocking:  # A rank waits for each of its transfers, one forward and one backward.
        period = busiest + np.where(p > 1, 2 * v * transfer, 0.0)
    else:  # A micro-batch passes the pipeline both ways while all those in flight pass the first rank.
        flying = np.where(v > 1, (v + 1) * p / v, p)
        there_and_back = whole + 2 * (p * v - 1) * transfer
        streams = (name == SCHEDULES["gpipe"]) | (m < p)
        period = np.maximum(busiest, np.where(streams, 0.0, there_and_back / flying))
    filling = (whole - busiest) / v
    # No rank waits for weight gradients, which leaves F + I of F + I + W. If they are deferred until others fill the
    # pipeline, F + I - W is left. I and W take equally long.
    inputs = (1 - forward) / 2
    filling = np.where(name == SCHEDULES["1f1b-split"], filling * (forward + inputs), filling)
    filling = np.where(name == SCHEDULES["zb-h1"], filling * forward, filling)
    filling = np.where(name == SCHEDULES["zb-v"], filling * np.maximum(0, forward - inputs), filling)
    first = period if blocking else busiest
    seconds = first + (m - 1) * period + np.where(p > 1, filling + 2 * (p - 1) * transfer, 0.0)
    # With few micro-batches, zero-bubble schedules are limited by successive passes through the whole pipeline.
    stage, path = busiest / v, forward + inputs
    way = path * (whole + (m - 1) * stage) + inputs * stage + 2 * (p * v - 1) * transfer
    waits = (name == SCHEDULES["zb-h1"]) | (name == SCHEDULES["zb-v"])
    whole_step: Number = np.where(waits & (p > 1), np.maximum(seconds, way), seconds)
    return whole_step
