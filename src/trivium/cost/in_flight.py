"""Micro-batches in flight by stage: how many of them a rank keeps activations for.

The counts of a schedule table come from walking it. Those of a named schedule come from arithmetic as well, because a
search needs thousands of them; a test checks that both are equal. Sets of counts are [rank][set][own stages,
ascending], without sets that another set exceeds.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trivium.errors import ConfigError
from trivium.plan.schedule import Op, Row, ScheduleName

Counts = tuple[int, ...]
Sets = tuple[Counts, ...]


def peak_counts_of(row: Row, own: tuple[int, ...] | None = None, until: Op = Op.WEIGHT_GRADIENT) -> Sets:
    """Return the largest sets of micro-batches in flight by own stage of a rank. own: by default the stages in its
    row. until: the part of a split backward with which a micro-batch's flight ends: activations on the device are kept
    until the weight gradients are computed, those on the host until the input gradients are."""
    stages = own or sorted({action.stage for action in row})
    held, seen = dict.fromkeys(stages, 0), set()
    for action in row:
        held[action.stage] += (action.op is Op.FORWARD) - (action.op in (Op.BACKWARD, until))
        if action.op is Op.FORWARD:
            seen.add(tuple(held.values()))
    return _maximal(seen)


def put_off_counts_of(row: Row, own: tuple[int, ...] | None = None) -> Counts:
    """Return the largest number of micro-batches with deferred weight gradients by own stage."""
    waiting = dict.fromkeys(own or sorted({action.stage for action in row}), 0)
    most = dict(waiting)
    for action in row:
        waiting[action.stage] += (action.op is Op.INPUT_GRADIENT) - (action.op is Op.WEIGHT_GRADIENT)
        most[action.stage] = max(most[action.stage], waiting[action.stage])
    return tuple(most.values())


@lru_cache(maxsize=4096)
def peak_counts(
    name: ScheduleName, pipeline: int, micro_batches: int, chunks: int, until: Op = Op.WEIGHT_GRADIENT
) -> tuple[Sets, ...]:
    """Return `peak_counts_of` every rank of a named schedule."""
    p, m = pipeline, micro_batches
    match name:
        case "gpipe":
            return (((m,),),) * p
        case "1f1b" | "1f1b-split":
            return tuple(((min(m, p - rank),),) for rank in range(p))
        case "zb-h1":
            deferred = until is Op.WEIGHT_GRADIENT
            return tuple(((min(m, p if deferred else p - rank),),) for rank in range(p))
        case "interleaved":
            return tuple(_interleaved(p, m, chunks, rank) for rank in range(p))
        case "zb-v":
            return tuple(_zero_bubble_v(p, m, rank) for rank in range(p))
        case "given" | "zb-turns":
            raise ConfigError(f"schedule '{name}' for {p} ranks has no rule to count by: ask of its rows")


def put_off_counts(name: ScheduleName, pipeline: int, micro_batches: int, chunks: int) -> tuple[Counts, ...]:
    """Return `put_off_counts_of` every rank of a named schedule."""
    p, m = pipeline, micro_batches
    match name:
        case "zb-h1":
            return tuple((min(m, rank + 1),) for rank in range(p))
        case "zb-v":  # The cooldown computes the input gradients of both stages first.
            return tuple((min(m, rank + 1), max(1, min(rank, m + rank - p))) for rank in range(p))
        case "1f1b-split":
            return ((1,),) * p
        case "1f1b" | "given" | "gpipe" | "interleaved" | "zb-turns":
            return ((0,) * chunks,) * p


def _zero_bubble_v(p: int, m: int, rank: int) -> Sets:
    """Return the counts of a V-shaped schedule, which passes the ranks down and back up: at most 2p stage
    activations."""
    if m < 2 * p - rank:
        return ((m, min(m, rank + 1)),)
    return ((2 * p - rank - 1, rank + 1), (2 * p - rank, rank))


def interleaved_sums(p: int, m: int, chunks: int, rank: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return weighted sums [set, sum] of the counts of an interleaved rank's largest sets. weights: [own stage, sum].

    The sets themselves are not built, because hundreds of chunks have thousands of sets with hundreds of counts each.
    """
    forwards, backwards = _fullest(p, m, chunks, rank)
    chunk = np.arange(forwards[-1]) // p % chunks
    begin = np.zeros((1, weights.shape[1]), np.int64)
    gone, back = (np.concatenate([begin, np.cumsum(each[chunk], axis=0)]) for each in (weights, weights[::-1]))
    found: NDArray[np.int64] = gone[forwards] - back[backwards]
    return found


def _interleaved(p: int, m: int, chunks: int, rank: int) -> Sets:
    forwards, backwards = _fullest(p, m, chunks, rank)
    held = _done(forwards, p, chunks) - _done(backwards, p, chunks)[:, ::-1]
    return _maximal(set(map(tuple, held.tolist())))


def _fullest(p: int, m: int, chunks: int, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of forwards and backwards that an interleaved rank has completed at its peaks. After the
    warm-up, one backward follows each forward; the pattern repeats after p micro-batches of every chunk."""
    actions = m * chunks
    warmup = min(2 * (p - rank - 1) + (chunks - 1) * p, actions)
    forwards = np.arange(warmup + 1, min(warmup + p * chunks, actions) + 1)
    if not len(forwards):  # The step consists of the warm-up only.
        forwards = np.array([actions])
    return forwards, np.maximum(forwards - 1 - warmup, 0)


def _done(actions: NDArray[np.int64], p: int, chunks: int) -> NDArray[np.int64]:
    """Return how many of the first `actions` actions belong to each chunk: [actions, chunks]. Chunks take turns of
    p."""
    groups, rest = np.divmod(actions[:, None], p * chunks)
    return groups * p + np.clip(rest - np.arange(chunks) * p, 0, p)


def _maximal(seen: set[Counts]) -> Sets:
    if len({sum(counts) for counts in seen}) == 1:  # With equal sums, no set exceeds another.
        return tuple(sorted(seen))
    return tuple(
        a for a in sorted(seen) if not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for b in seen)
    )
