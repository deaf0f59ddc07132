"""The clock: medians of repeated work, with the device waited for."""

import time
from collections.abc import Callable
from statistics import median

import torch

from trivium.parallel.clock import finished

FEWEST, MOST = 3, 200  # repetitions, in each of several turns
WARM = 1


def median_seconds(work: Callable[[], object], device: torch.device, *, budget: float) -> float:
    """Median seconds of `work`, repeated for `budget` seconds, at least `FEWEST` times."""
    for _ in range(WARM):
        work()
    finished(device)
    seconds: list[float] = []
    until = time.perf_counter() + budget
    while len(seconds) < FEWEST or (time.perf_counter() < until and len(seconds) < MOST):
        begin = time.perf_counter()
        work()
        finished(device)
        seconds.append(time.perf_counter() - begin)
    return median(seconds)
