"""The fullest moments of a pipeline rank: what it holds, counted in layers and in micro-batches.

Read off the schedule and the partition, and free of sizes, so that thousands of plans share a few of them.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import NONE, Case, Number, case_of
from trivium.cost.in_flight import (
    Counts,
    Sets,
    peak_counts,
    peak_counts_of,
    put_off_counts,
    put_off_counts_of,
)
from trivium.cost.stages import layers_by_stage, stages_by_rank
from trivium.cost.step_time import SCHEDULES
from trivium.plan.plan import Plan
from trivium.plan.schedule import SPLIT_SCHEDULES, ScheduleName


class Moment(NamedTuple):
    """One rank at one moment; numbers, or arrays with one entry per plan.

    layers: whose weights it holds, of which `recomputed_layers` are computed again in the backward. first, last: 1
    where it holds that end of the model. kept, recomputed: layers times micro-batches in flight, of the ones whose
    activations are kept and of the ones computed again. embedded, headed: micro-batches in flight through the ends.
    put_off, put_off_again: the same of micro-batches whose weight gradients wait for an action of their own.
    begun: 0 where a rank has one forward and one backward in a step, so that no gradient exists yet; else 1.
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


def moments_of_rank(plan: Plan, pipeline: int) -> list[Moment]:
    """The fullest moments of one rank of a plan in a step of the full batch."""
    layout, layers = plan.layout, layers_by_stage(plan)
    stages = stages_by_rank(plan)[pipeline]
    micro_batches = plan.batch.micro_batches(layout)
    if plan.schedule == "given":
        row = plan.schedule_table()[pipeline]
        sets, waiting = peak_counts_of(row), put_off_counts_of(row)
    else:
        step = (plan.schedule, layout.pipeline, micro_batches, layout.chunks)
        sets, waiting = peak_counts(*step)[pipeline], put_off_counts(*step)[pipeline]
    again = tuple(sum(plan.recompute.mode_of(n) != "none" for n in layers[s]) for s in stages)
    every = tuple(len(layers[s]) for s in stages)
    begun = bool(case_of(plan).deferred) or micro_batches * len(stages) > 1
    return [
        Moment(*row) for row in _moments(stages, layout.stages, every, again, sets, waiting, begun).tolist()
    ]


@lru_cache(maxsize=8192)
def moments(
    schedule: ScheduleName, pipeline: int, micro_batches: int, chunks: int, layers: int, every: int
) -> NDArray[np.float64]:
    """[moment, field of Moment]: of all ranks of a balanced plan, those that no other moment exceeds in everything.

    every: every so many layers are computed again (1 also where none is: then nobody asks which).
    """
    stages = pipeline * chunks
    counts = balanced(layers, stages)
    ends = np.cumsum(counts)
    again = -(-ends // every) + (-(ends - counts) // every)
    sets = peak_counts(schedule, pipeline, micro_batches, chunks)
    waiting = put_off_counts(schedule, pipeline, micro_batches, chunks)
    found = []
    for rank, own in enumerate(_own_stages(schedule, pipeline, chunks)):
        begun = schedule in SPLIT_SCHEDULES or micro_batches * chunks > 1
        each = list(own)
        every_layer, computed_again = tuple(counts[each]), tuple(again[each])
        found.append(_moments(own, stages, every_layer, computed_again, sets[rank], waiting[rank], begun))
    return _not_exceeded(np.unique(np.concatenate(found), axis=0))


def moments_of_cases(case: Case, schedule: Number | ScheduleName) -> list[Moment]:
    """Moments such that each plan's worst is among them: every field an array with one entry per plan.

    schedule: a name, or numbers of SCHEDULES.
    """
    names = {number: name for name, number in SCHEDULES.items() if name != "given"}
    codes = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
    every = np.where(np.asarray(case.recompute) == NONE, 1, case.recompute_every)
    # What a moment depends on; long steps are alike.
    capped = np.where(
        np.asarray(codes) == SCHEDULES["gpipe"],
        case.micro_batches,
        np.minimum(case.micro_batches, 3 * np.asarray(case.pipeline)),
    )
    wanted = (codes, case.pipeline, capped, case.chunks, case.layers, every)
    shape = np.broadcast_shapes((1,), *(np.shape(v) for v in (codes, *vars(case).values())))
    keys = np.stack([np.broadcast_to(v, shape) for v in wanted]).astype(np.int64)
    distinct, index = _distinct(keys)
    tables = [moments(names[code], *sizes) for code, *sizes in distinct.T.tolist()]
    longest = max(map(len, tables))
    padded = np.stack([np.concatenate([t, np.repeat(t[:1], longest - len(t), 0)]) for t in tables])
    return [Moment(*padded[index, n].T) for n in range(longest)]


def balanced(layers: int, stages: int) -> NDArray[np.int64]:
    """Layers of each stage under plan.Partition(): equal, and what is over goes to the middle."""
    whole, over = divmod(layers, stages)
    counts = np.full(stages, whole)
    numbers = np.arange(stages)
    counts[np.lexsort((numbers, np.abs(numbers - (stages - 1) / 2)))[:over]] += 1
    return counts


def _distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different columns, and of each column which of them it is.

    One number per column: sorting these is much faster than sorting columns.
    """
    number = np.zeros(keys.shape[1], np.int64)
    for row in keys:
        number = number * (int(row.max()) + 1) + row
    _, first, index = np.unique(number, return_index=True, return_inverse=True)
    return keys[:, first], index


def _own_stages(schedule: ScheduleName, pipeline: int, chunks: int) -> list[tuple[int, ...]]:
    if schedule == "zb-v":
        return [(rank, 2 * pipeline - 1 - rank) for rank in range(pipeline)]
    return [tuple(range(rank, pipeline * chunks, pipeline)) for rank in range(pipeline)]


def _moments(
    own: tuple[int, ...], stages: int, layers: Counts, again: Counts, sets: Sets, waiting: Counts, begun: bool
) -> NDArray[np.float64]:
    """[set, field of Moment] of one rank. layers, again: of each of its own stages, all and those computed again;
    waiting: of each, the micro-batches whose weight gradients are put off."""
    held = np.array(sets, dtype=np.float64)
    none = np.zeros(len(held))
    first, last = own[0] == 0, own[-1] == stages - 1
    headed = held[:, -1] if last else none
    moment = Moment(
        layers=none + sum(layers),
        recomputed_layers=none + sum(again),
        first=none + first,
        last=none + last,
        kept=held @ (np.array(layers) - np.array(again)),
        recomputed=held @ np.array(again),
        embedded=held[:, 0] if first else none,
        headed=headed,
        put_off=none + np.array(waiting) @ (np.array(layers) - np.array(again)),
        put_off_again=none + np.array(waiting) @ np.array(again),
        begun=none + begun,
    )
    return np.stack(moment, axis=1)


def _not_exceeded(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows for which no other is at least as large in every column."""
    at_least = (rows[None, :, :] >= rows[:, None, :]).all(-1)
    alone: NDArray[np.float64] = rows[at_least.sum(1) == 1]  # each row is as large as itself
    return alone
