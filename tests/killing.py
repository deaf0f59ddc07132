"""Kill a rank of a training at a step, however busy the machine is."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from trivium.comms.launch import Ranks
from trivium.training import loop as loop


def killing(at: int, monkeypatch: pytest.MonkeyPatch, victim: int = 0, later: int = 2) -> Callable[[Ranks, int], None]:
    """A watch that kills a rank once, when a step is done; so that it does not come too late, the ranks wait for it
    some steps later. Those that are forked after it find it done."""
    done: list[int] = []
    right = loop.Loop.train_step

    def step(self):
        if not done and self.step > at + later:
            time.sleep(60)
        return right(self)

    monkeypatch.setattr(loop.Loop, "train_step", step)

    def watch(ranks: Ranks, step: int) -> None:
        if not done and step >= at:
            done.append(step)
            os.kill(ranks.pids[victim], signal.SIGKILL)

    return watch
