"""Memory peaks of a pipeline rank, counted in layers and micro-batches.

They follow from the schedule and the partition and do not depend on sizes, so thousands of plans share a few of them.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import NONE, Case, puts_off
from trivium.cost.in_flight import (
    Counts,
    interleaved_sums,
    peak_counts,
    peak_counts_of,
    put_off_counts,
    put_off_counts_of,
)
from trivium.cost.stages import every_nth, layers_by_stage, recomputed_layers
from trivium.cost.step_time import SCHEDULES
from trivium.plan.layers.part import Number
from trivium.plan.partition import balanced
from trivium.plan.plan import Plan
from trivium.plan.schedule import SCHEDULE_NAMES, SPLIT_SCHEDULES, ScheduleName, stages_of_named


class MemoryPeak(NamedTuple):
    """One rank at a memory peak; numbers, or arrays with one entry per plan.

    layers: layers of the rank; recomputed_layers: those that the backward recomputes. first, last: 1 if the rank holds
    that end of the model. kept, recomputed: layers times micro-batches in flight, for layers that keep their
    activations and for recomputed layers. embedded, headed: micro-batches in flight through the two ends. put_off,
    put_off_again: as kept and recomputed, for micro-batches with deferred weight gradients. begun: 0 if the step has
    one forward and one backward on the rank, so that no gradient exists at the peak; else 1.
    """

    layers: Number
    recomputed_layers: Number
    first: Number
    last: Number
    kept: Number
    recomputed: Number
    embedded: Number
    headed: Number
    put_off: Number
    put_off_again: Number
    begun: Number


def peaks_of_rank(plan: Plan, pipeline: int) -> list[MemoryPeak]:
    """Return the memory peaks of one rank of a plan in a step of the full batch."""
    layout, layers = plan.layout, layers_by_stage(plan)
    stages = plan.stages_of(pipeline)
    micro_batches = plan.batch.micro_batches(layout)
    if plan.schedule not in SCHEDULE_NAMES:
        row = plan.schedule_table()[pipeline]
        sets, waiting = peak_counts_of(row, stages), put_off_counts_of(row, stages)
    else:
        step = (plan.schedule, layout.pipeline, micro_batches, layout.chunks)
        sets, waiting = peak_counts(*step)[pipeline], put_off_counts(*step)[pipeline]
    again = recomputed_layers(plan)[list(stages)]
    every = [len(layers[s]) for s in stages]
    begun = bool(puts_off(plan)) or micro_batches * len(stages) > 1
    sums = [np.array(sets) @ _weights(np.array(every), again)]
    found = _peaks([stages], plan.stages, np.array([every]), again[None], sums, [waiting], begun)
    return [MemoryPeak(*row) for row in found.tolist()]


@lru_cache(maxsize=8192)
def peaks_of_schedule(
    schedule: ScheduleName, pipeline: int, micro_batches: int, chunks: int, layers: int, every: int
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
    each = np.array(own)
    every_layer, again = counts[each], every_nth(counts, every)[each]
    weights = [_weights(*held) for held in zip(every_layer, again, strict=True)]
    if schedule == "interleaved":
        sums = [interleaved_sums(*step, rank, weighed) for rank, weighed in enumerate(weights)]
    else:
        sets = peak_counts(schedule, *step)
        sums = [np.array(of_rank) @ weighed for of_rank, weighed in zip(sets, weights, strict=True)]
    return _not_exceeded(_peaks(own, stages, every_layer, again, sums, waiting, begun))


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
    wanted = (codes, case.pipeline, capped, case.chunks, case.layers, every)
    shape = np.broadcast_shapes((1,), *(np.shape(v) for v in (codes, *case.numbers)))
    keys = np.stack([np.broadcast_to(v, shape) for v in wanted]).astype(np.int64)
    distinct, index = _distinct(keys)
    tables = [peaks_of_schedule(SCHEDULE_NAMES[code], *sizes) for code, *sizes in distinct.T.tolist()]
    lengths = np.array([len(table) for table in tables])
    starts, rows = np.cumsum(lengths) - lengths, np.concatenate(tables)
    for n in range(lengths.max()):
        which = np.flatnonzero(lengths[index] > n)
        yield which, MemoryPeak(*rows[starts[index[which]] + n].T)


def _distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct columns and the index of each column among them."""
    # Sorting one number per column is much faster than sorting columns.
    number = np.zeros(keys.shape[1], np.int64)
    for row in keys:
        number = number * (int(row.max()) + 1) + row
    _, first, index = np.unique(number, return_index=True, return_inverse=True)
    return keys[:, first], index


def _weights(layers: NDArray[np.int64], again: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return weights [own stage, sum] of the micro-batches in flight by stage: layers that keep their activations,
    recomputed layers, the first stage, the last stage."""
    number = np.arange(len(layers))
    return np.stack([layers - again, again, number == 0, number == number[-1]], axis=1).astype(np.int64)


def _peaks(
    own: Sequence[tuple[int, ...]],
    stages: int,
    layers: NDArray[np.int64],
    again: NDArray[np.int64],
    sums: Sequence[NDArray[np.int64]],
    waiting: Sequence[Counts],
    begun: bool,
) -> NDArray[np.float64]:
    """Return the peaks [peak, field of MemoryPeak] of some ranks, one after the other.

    own: stages of each rank. layers, again: [rank, own stage], all layers and the recomputed ones. sums: sums of each
    rank's peaks by `_weights`. waiting: micro-batches with deferred weight gradients by own stage.
    """
    held = np.concatenate(sums)
    rank = np.repeat(np.arange(len(own)), [len(of_rank) for of_rank in sums])
    first, last = (np.array([s[end] == stage for s in own])[rank] for end, stage in ((0, 0), (-1, stages - 1)))
    kept, put_off = layers - again, np.array(waiting)
    moment = MemoryPeak(
        layers=layers.sum(1)[rank],
        recomputed_layers=again.sum(1)[rank],
        first=first,
        last=last,
        kept=held[:, 0],
        recomputed=held[:, 1],
        embedded=held[:, 2] * first,
        headed=held[:, 3] * last,
        put_off=(put_off * kept).sum(1)[rank],
        put_off_again=(put_off * again).sum(1)[rank],
        begun=np.full(len(held), begun),
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
