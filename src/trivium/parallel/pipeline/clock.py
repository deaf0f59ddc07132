"""Times between pieces of work, by the clock of whoever does it."""

import time
from typing import Any

import torch


class Clock:
    """Marks, each after the work before it: by this process's clock, or by the accelerator's own where one is given,
    whose work this process only asks for."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._of_device = device is not None and device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Set the next mark."""
        if self._of_device:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return the seconds from the first mark to each mark. A GPU is synchronised first."""
        first, last = self._marks[0], self._marks[-1]
        if self._of_device:
            last.synchronize()
            return [first.elapsed_time(mark) / 1e3 for mark in self._marks]
        return [mark - first for mark in self._marks]


def finished(device: torch.device) -> None:
    """Return when the device has done everything it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
