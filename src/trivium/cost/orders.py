"""Schedules as arrays of kinds, which are built a hundred times faster than tables of actions.

A kind is an operation on a stage. Every named schedule processes the micro-batches of a kind in ascending order, so the
n-th occurrence of a kind in a row belongs to micro-batch n. A test checks that arrays and tables are equal.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trivium.errors import ConfigError
from trivium.plan.schedule import SPLIT_SCHEDULES, Op, ScheduleName, alternate, ops

Array = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Order:
    """A schedule. kinds: [pipeline rank, position], the index of the operation in `ops` x stages + stage. numbers: the
    micro-batch at each position. rank_of: the pipeline rank of each stage."""

    kinds: Array
    numbers: Array
    rank_of: Array
    micro_batches: int
    ops: tuple[Op, ...]

    @property
    def stages(self) -> int:
        return len(self.rank_of)


@lru_cache(maxsize=256)
def order_of(name: ScheduleName, pipeline: int, micro_batches: int, chunks: int = 1) -> Order:
    """Return a named schedule, equal to plan.schedule.make_schedule with the same arguments."""
    p, m, stages = pipeline, micro_batches, pipeline * chunks
    if name == "interleaved" and m % p:
        raise ConfigError(
            f"an interleaved schedule needs micro-batches ({m}) in multiples of pipeline ({p}); change the batch"
        )
    match name:
        case "gpipe" | "1f1b":
            rows = [alternate([r] * m, [stages + r] * m, warmup=m if name == "gpipe" else p - r - 1) for r in range(p)]
        case "interleaved":
            chunk = [c * p for _ in range(m // p) for c in range(chunks) for _ in range(p)]
            rows = [
                alternate(
                    [c + r for c in chunk], [2 * stages - p - c + r for c in chunk], warmup=2 * (p - r - 1) + stages - p
                )
                for r in range(p)
            ]
        case "zb-h1":
            rows = [_zero_bubble_h1(p, m, r) for r in range(p)]
        case "zb-v":
            rows = [_zero_bubble_v(p, m, r) for r in range(p)]
        case "1f1b-split":
            rows = [_split(r, p - r - 1, p, m) for r in range(p)]
        case "given" | "zb-turns":
            raise ConfigError(f"schedule '{name}' for {p} ranks has stages that go no common way: see its table")
    rank_of = np.arange(stages) % p
    if name == "zb-v":
        rank_of = np.minimum(np.arange(stages), stages - 1 - np.arange(stages))
    return _numbered(rows, rank_of, m, ops(split=name in SPLIT_SCHEDULES))


def _split(rank: int, warmup: int, ranks: int, micro_batches: int) -> list[int]:
    """Return the row of a rank in 1F1B with each backward split in two."""
    forward, inputs, weights = (op * ranks + rank for op in range(3))
    turns = max(0, micro_batches - warmup)
    row = [forward] * warmup + [forward, inputs, weights] * turns
    return row + [inputs, weights] * min(warmup, micro_batches)


def _zero_bubble_h1(ranks: int, micro_batches: int, rank: int) -> list[int]:
    forward, inputs, weights = (op * ranks + rank for op in range(3))
    row = [forward] * (ranks - rank - 1) + [forward, inputs] * min(rank, micro_batches)
    row += [forward, inputs, weights] * max(0, micro_batches - rank)
    return row + [weights] * min(rank, micro_batches)


def _zero_bubble_v(ranks: int, micro_batches: int, rank: int) -> list[int]:
    stages, behind = 2 * ranks, ranks - rank
    fd, id_, wd = (op * stages + rank for op in range(3))
    fu, iu, wu = (op * stages + stages - 1 - rank for op in range(3))
    row = [fd] * (2 * behind - 1) + [fu, fd] * rank + [fu, iu, wu] * behind
    row += [fd, id_, wd, fu, iu, wu] * max(0, micro_batches - ranks)
    row += [id_, iu] * rank + [id_, wd] * behind
    return row + [iu, wu] * micro_batches + [id_, wd] * micro_batches


def _numbered(rows: list[list[int]], rank_of: Array, micro_batches: int, each: tuple[Op, ...]) -> Order:
    """Number the occurrences of every kind in its row, and drop those beyond the number of micro-batches."""
    stages = len(rank_of)
    length = len(each) * micro_batches * stages // len(rows)
    kinds = np.empty((len(rows), length), np.int64)
    numbers = np.empty_like(kinds)
    for rank, row in enumerate(rows):
        every = np.array(row)
        by_kind = np.argsort(every, kind="stable")
        sorted_kinds = every[by_kind]
        first = np.searchsorted(sorted_kinds, sorted_kinds)
        number = np.empty_like(every)
        number[by_kind] = np.arange(len(every)) - first
        kept = number < micro_batches
        kinds[rank], numbers[rank] = every[kept], number[kept]
    return Order(kinds, numbers, rank_of, micro_batches, each)
