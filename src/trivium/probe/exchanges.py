"""Measure the trainer's collectives between ranks, with products in between as in training.

A waiting rank on shared cores yields its core and must get it back. Therefore every collective is timed between two
products, and the time of the products is subtracted.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, get_args

import torch

from trivium.comms.collectives import all_gather, all_reduce_, reduce_scatter, rotate
from trivium.comms.group import Group
from trivium.parallel.pipeline.clock import finished
from trivium.planner.measured import Collective, Exchange

SIZES = (1 << 10, 1 << 16, 1 << 19, 1 << 22)  # bytes of the whole tensor
TURNS, REPEATS = 3, 6  # the median of means, because a single call may fall before or after the end of a time slice
ELEMENT_BYTES = 4
PRODUCT_COLUMNS = 384  # rows and columns of the product between two collectives, which takes a core about a millisecond
MIN_SECONDS = 1e-6


def exchanges(group: Group, device: torch.device) -> tuple[Exchange, ...]:
    """Measure every collective at every size over the whole group, in turns. All its ranks must call this."""
    square = torch.ones(PRODUCT_COLUMNS, PRODUCT_COLUMNS, device=device)

    def between() -> object:
        return square @ square

    works = {(kind, size): _work(kind, size, group, device) for kind in get_args(Collective) for size in SIZES}
    alone: list[Spent] = []
    both: dict[tuple[Collective, int], list[Spent]] = {which: [] for which in works}
    for _ in range(TURNS):
        alone.append(_mean_seconds(between, group, device))
        for which, collective in works.items():
            both[which].append(_mean_seconds(lambda: (between(), collective()), group, device))  # noqa: B023
    without = _median(alone)
    found = []
    for (kind, size), spent in both.items():
        seconds, busy = (a - b for a, b in zip(_median(spent), without, strict=True))
        found.append(Exchange(kind, group.size, size, max(MIN_SECONDS, seconds), max(0.0, busy)))
    return tuple(found)


class Spent(NamedTuple):
    """Seconds of some work, and those of them that were spent on a core."""

    seconds: float
    busy: float


def _median(spent: Sequence[Spent]) -> Spent:
    return Spent(*(median(values) for values in zip(*spent, strict=True)))


def _mean_seconds(work: Callable[[], object], group: Group, device: torch.device) -> Spent:
    """Return the mean seconds of one `work`, while the other ranks of the group do the same."""
    all_reduce_(torch.zeros(1, device=device), group)
    finished(device)
    begin, on_core = time.perf_counter(), time.process_time()
    for _ in range(REPEATS):
        work()
    finished(device)
    return Spent((time.perf_counter() - begin) / REPEATS, (time.process_time() - on_core) / REPEATS)


def _work(kind: Collective, size: int, group: Group, device: torch.device) -> Callable[[], object]:
    whole = torch.ones(size // ELEMENT_BYTES, device=device)
    part = torch.ones(size // ELEMENT_BYTES // group.size, device=device)
    works: dict[Collective, Callable[[], object]] = {
        "all_reduce": lambda: all_reduce_(whole, group),
        "all_gather": lambda: all_gather(part, group),
        "reduce_scatter": lambda: reduce_scatter(whole, group),
        "send": lambda: rotate((whole,), group),  # every rank sends one tensor and receives one
    }
    return works[kind]
