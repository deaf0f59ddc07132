"""Memory peaks of a pipeline rank, counted in layers and micro-batches.

They follow from the schedule and the partition and do not depend on sizes, so thousands of plans share a few of them.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import NONE, Case, puts_off
from trivium.cost.in_flight import (
    Counts,
    Sets,
    interleaved_sums,
    peak_counts,
    peak_counts_of,
    put_off_counts,
    put_off_counts_of,
)
from trivium.cost.stages import (
    every_nth,
    last_of_every_nth,
    layers_away,
    layers_by_stage,
    recomputed_away,
    recomputed_last,
    recomputed_layers,
)
from trivium.cost.step_time import SCHEDULES
from trivium.plan.layers.part import Number
from trivium.plan.offload import LAYERS_HERE, Offload
from trivium.plan.partition import balanced
from trivium.plan.plan import Plan
from trivium.plan.schedule import SCHEDULE_NAMES, SPLIT_SCHEDULES, Op, ScheduleName, stages_of_named

# The parts of a split backward after which nothing of a micro-batch is kept: on the device, and on the host.
ENDS = (Op.WEIGHT_GRADIENT, Op.INPUT_GRADIENT)
ON_HOST = slice(2, 4)  # sums of `Layers.weights` that count what the host keeps


class MemoryPeak(NamedTuple):
    """One rank at a memory peak; numbers, or arrays with one entry per plan.

    layers: layers of the rank. begins_again: 1 if the backward of one of its stages begins with a layer that it
    recomputes. first, last: 1 if the rank holds that end of the model. kept, recomputed: layers times micro-batches in
    flight, for layers that keep their activations and for recomputed layers. embedded, headed: micro-batches in flight
    through the two ends. put_off, put_off_again: as kept and recomputed, for micro-batches with deferred weight
    gradients. begun: 0 if the step has one forward and one backward on the rank, so that no gradient exists at the
    peak; else 1. away, away_again, put_off_away: as kept, recomputed, and both of the deferred, for layers whose
    activations are on the host; the others do not count these. returned, returned_again: layers of which activations
    are on their way at once.
    """

    layers: Number
    begins_again: Number
    first: Number
    last: Number
    kept: Number
    recomputed: Number
    embedded: Number
    headed: Number
    put_off: Number
    put_off_again: Number
    begun: Number
    away: Number
    away_again: Number
    put_off_away: Number
    returned: Number
    returned_again: Number


class Layers(NamedTuple):
    """Layers by stage: all, those that the backward recomputes, those whose activations are on the host, those to which
    both applies, and the last layer if the backward recomputes it."""

    every: NDArray[np.int64]
    again: NDArray[np.int64]
    away: NDArray[np.int64]
    both: NDArray[np.int64]
    final: NDArray[np.int64]

    def of(self, stages: Any) -> "Layers":
        """Return those of some stages."""
        return Layers(*(counts[stages] for counts in self))

    @property
    def kinds(self) -> tuple[NDArray[np.int64], ...]:
        """Layers that are kept and recomputed on the device, and those on the host."""
        away = self.away - self.both
        return self.every - self.again - away, self.again - self.both, away, self.both

    def weights(self) -> NDArray[np.int64]:
        """Return weights [own stage, sum] of the micro-batches in flight by stage: the kinds, the first stage, the last
        stage."""
        number = np.arange(len(self.every))
        return np.stack([*self.kinds, number == 0, number == number[-1]], axis=1).astype(np.int64)


def peaks_of_rank(plan: Plan, pipeline: int) -> list[MemoryPeak]:
    """Return the memory peaks of one rank of a plan in a step of the full batch."""
    layout, layers = plan.layout, layers_by_stage(plan)
    stages = plan.stages_of(pipeline)
    micro_batches = plan.batch.micro_batches(layout)
    if plan.schedule not in SCHEDULE_NAMES:
        row = plan.schedule_table()[pipeline]
        waiting, sets = put_off_counts_of(row, stages), [peak_counts_of(row, stages, until) for until in ENDS]
    else:
        step = (plan.schedule, layout.pipeline, micro_batches, layout.chunks)
        waiting = put_off_counts(*step)[pipeline]
        sets = [peak_counts(*step, until)[pipeline] for until in ENDS]
    counts = np.array([len(each) for each in layers])
    again = recomputed_layers(plan), layers_away(plan), recomputed_away(plan), recomputed_last(plan)
    own = Layers(counts, *again).of(np.array([stages]))
    begun = bool(puts_off(plan)) or micro_batches * len(stages) > 1
    sums = [_sums(sets, own.of(0).weights())]
    found = _peaks([stages], plan.stages, own, sums, [waiting], begun)
    return [MemoryPeak(*row) for row in found.tolist()]


@lru_cache(maxsize=8192)
def peaks_of_schedule(
    schedule: ScheduleName, pipeline: int, micro_batches: int, chunks: int, layers: int, every: int, offload: Offload
) -> NDArray[np.float64]:
    """Return an array [peak, field of MemoryPeak]: the peaks of all ranks of a balanced plan that no other peak exceeds
    in every field.

    every: the interval of recomputed layers; 1 if no layer is recomputed.
    """
    stages = pipeline * chunks
    counts = np.array(balanced(layers, stages))
    own = stages_of_named(schedule, pipeline, chunks)
    step = (pipeline, micro_batches, chunks)
    waiting = put_off_counts(schedule, *step)
    begun = schedule in SPLIT_SCHEDULES or micro_batches * chunks > 1
    away = np.array([offload.layers(n) for n in counts.tolist()])
    again, both, final = every_nth(counts, every), every_nth(counts, every, away), last_of_every_nth(counts, every)
    of_ranks = Layers(counts, again, away, both, final).of(np.array(own))
    weights = [of_ranks.of(rank).weights() for rank in range(pipeline)]
    if schedule == "interleaved":
        sums = [interleaved_sums(*step, rank, weighed) for rank, weighed in enumerate(weights)]
    else:
        sets = [peak_counts(schedule, *step, until) for until in ENDS]
        sums = [_sums(of_rank, weighed) for *of_rank, weighed in zip(*sets, weights, strict=True)]
    return _not_exceeded(_peaks(own, stages, of_ranks, sums, waiting, begun))


def peaks_of_case(case: Case, schedule: Number | ScheduleName) -> Iterator[tuple[NDArray[np.int64], MemoryPeak]]:
    """Yield peaks that include the worst one of each plan: indices of plans, and the n-th peak of each of them as
    arrays. The first pair covers all plans.

    schedule: a name, or numbers of SCHEDULES.
    """
    codes = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
    every = np.where(np.asarray(case.recompute) == NONE, 1, case.recompute_every)
    # The inputs of a peak. Longer steps have the same peaks.
    capped = np.where(
        np.asarray(codes) == SCHEDULES["gpipe"],
        case.micro_batches,
        np.minimum(case.micro_batches, 3 * np.asarray(case.pipeline)),
    )
    shares = np.unique(case.activations_away)
    away = np.searchsorted(shares, case.activations_away)
    wanted = (codes, case.pipeline, capped, case.chunks, case.layers, every, away)
    shape = np.broadcast_shapes((1,), *(np.shape(v) for v in (codes, *case.numbers)))
    keys = np.stack([np.broadcast_to(v, shape) for v in wanted]).astype(np.int64)
    distinct, index = _distinct(keys)
    offloads = [Offload(activations=share) for share in shares.tolist()]
    tables = [peaks_of_schedule(SCHEDULE_NAMES[code], *sizes, offloads[n]) for code, *sizes, n in distinct.T.tolist()]
    lengths = np.array([len(table) for table in tables])
    starts, rows = np.cumsum(lengths) - lengths, np.concatenate(tables)
    for n in range(lengths.max()):
        which = np.flatnonzero(lengths[index] > n)
        yield which, MemoryPeak(*rows[starts[index[which]] + n].T)


def _sums(sets: Sequence[Sets], weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of a rank's peaks by `Layers.weights`. sets: its largest sets, for each of ENDS. The peaks of the
    device and of the host may be at different times."""
    here, there = (np.array(each) @ weights for each in sets)
    every = np.arange(max(len(here), len(there)))
    found: NDArray[np.int64] = here[np.minimum(every, len(here) - 1)]
    found[:, ON_HOST] = there[np.minimum(every, len(there) - 1), ON_HOST]
    return found


def _distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct columns and the index of each column among them."""
    # Sorting one number per column is much faster than sorting columns.
    number = np.zeros(keys.shape[1], np.int64)
    for row in keys:
        number = number * (int(row.max()) + 1) + row
    _, first, index = np.unique(number, return_index=True, return_inverse=True)
    return keys[:, first], index


def _peaks(
    own: Sequence[tuple[int, ...]],
    stages: int,
    layers: Layers,
    sums: Sequence[NDArray[np.int64]],
    waiting: Sequence[Counts],
    begun: bool,
) -> NDArray[np.float64]:
    """Return the peaks [peak, field of MemoryPeak] of some ranks, one after the other.

    own: stages of each rank. layers: [rank, own stage]. sums: sums of each rank's peaks by `Layers.weights`. waiting:
    micro-batches with deferred weight gradients by own stage.
    """
    held = np.concatenate(sums)
    rank = np.repeat(np.arange(len(own)), [len(of_rank) for of_rank in sums])
    first, last = (np.array([s[end] == stage for s in own])[rank] for end, stage in ((0, 0), (-1, stages - 1)))
    put_off = [(np.array(waiting) * of_kind).sum(1)[rank] for of_kind in layers.kinds]
    returned = np.minimum(layers.away.max(1), LAYERS_HERE)
    whole = np.minimum(returned, (layers.away - layers.both).sum(1))
    moment = MemoryPeak(
        layers=layers.every.sum(1)[rank],
        begins_again=layers.final.max(1)[rank],
        first=first,
        last=last,
        kept=held[:, 0],
        recomputed=held[:, 1],
        embedded=held[:, 4] * first,
        headed=held[:, 5] * last,
        put_off=put_off[0],
        put_off_again=put_off[1],
        begun=np.full(len(held), begun),
        away=held[:, 2],
        away_again=held[:, 3],
        put_off_away=put_off[2] + put_off[3],
        returned=whole[rank],
        returned_again=(returned - whole)[rank],
    )
    return np.stack(moment, axis=1).astype(np.float64)


def _not_exceeded(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distinct rows that no other row reaches or exceeds in every column."""
    rows = rows[np.argsort(-rows.sum(1))]  # No row exceeds the one with the largest sum.
    found = []
    while len(rows):
        found.append(rows[0])
        rows = rows[~(rows <= rows[0]).all(1)]
    return np.array(found)
