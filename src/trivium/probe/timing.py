"""Median times of repeated work, including device synchronisation.

The time of a GPU is measured on a CUDA graph of many repetitions, because the host launches single operations more
slowly than the GPU performs them.
"""

import time
from collections.abc import Callable
from statistics import median

import torch

from trivium.kernels.operations import operations_of
from trivium.parallel.pipeline.clock import finished

MIN_REPETITIONS, MAX_REPETITIONS = 3, 200  # repetitions, in each of several turns
WARMUP_REPETITIONS = 1
# The least duration of a captured CUDA graph, and the most repetitions of the work in it.
RECORDED_SECONDS, MAX_RECORDED_REPETITIONS = 1e-3, 64


def median_seconds(work: Callable[[], object], device: torch.device, *, budget: float) -> float:
    """Return the median seconds of `work`, repeated for `budget` seconds, at least `MIN_REPETITIONS` times."""
    for _ in range(WARMUP_REPETITIONS):
        work()
    finished(device)
    seconds: list[float] = []
    until = time.perf_counter() + budget
    while len(seconds) < MIN_REPETITIONS or (time.perf_counter() < until and len(seconds) < MAX_REPETITIONS):
        begin = time.perf_counter()
        work()
        finished(device)
        seconds.append(time.perf_counter() - begin)
    return median(seconds)


def device_seconds(work: Callable[[], object], device: torch.device, *, budget: float) -> float:
    """Return the median seconds of `work` on the device, without launch overhead of the host."""
    record = operations_of(device.type).recording
    if record is None:
        return median_seconds(work, device, budget=budget)
    for _ in range(WARMUP_REPETITIONS):
        work()
    alone = median_seconds(work, device, budget=0.0)
    pieces = max(1, min(MAX_RECORDED_REPETITIONS, round(RECORDED_SECONDS / alone)))
    recording = record(lambda: _again(work, pieces))
    return median_seconds(recording.replay, device, budget=budget) / pieces


def _again(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()
