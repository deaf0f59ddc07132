"""Heartbeats of ranks to their launcher in shared memory, and the ranks' stacks on request."""

import faulthandler
import mmap
import os
import signal
import tempfile
import time
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

Phase = Literal["starting", "step", "tracing", "validating", "evaluating", "saving"]
PHASES: tuple[Phase, ...] = get_args(Phase)
TELL_STACK = signal.SIGUSR2
_STEP, _PHASE, _SINCE, _AT = range(4)  # columns of a row: integers, then times
_COLUMNS = 4  # of 8 bytes each


class Heartbeat(NamedTuple):
    """The last heartbeat of a rank. step: the current one, or the one just done, counted from 1. at: its time. since:
    the start of the phase. Both are monotonic."""

    step: int
    phase: Phase
    at: float
    since: float


class Heartbeats:
    """One row of shared memory for each rank, and one byte for the launcher. Create it before forking the ranks.

    The launcher may read while a rank writes. Each value is therefore written by one store of 8 bytes (`struct` would
    clear them first). The time is written before the phase, because the phase selects the timeout.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._memory = mmap.mmap(-1, 8 * _COLUMNS * world_size + 1)
        rows = memoryview(self._memory)[:-1]
        self._integers, self._times = rows.cast("q"), rows.cast("d")
        self._stacks = [tempfile.TemporaryFile() for _ in range(world_size)]  # noqa: SIM115 kept open
        for rank in range(world_size):
            self.begin(rank, 0, "starting")

    def begin(self, rank: int, step: int, phase: Phase) -> None:
        """Record that a phase of a step begins."""
        row = _COLUMNS * rank
        self._times[row + _AT] = self._times[row + _SINCE] = time.monotonic()
        self._integers[row + _STEP] = step
        self._integers[row + _PHASE] = PHASES.index(phase)

    def alive(self, rank: int) -> None:
        """Record a heartbeat within a phase."""
        self._times[_COLUMNS * rank + _AT] = time.monotonic()

    def of(self, rank: int) -> Heartbeat:
        row = _COLUMNS * rank
        step, phase = self._integers[row + _STEP], self._integers[row + _PHASE]
        return Heartbeat(step, PHASES[phase], self._times[row + _AT], self._times[row + _SINCE])

    @property
    def asked_to_end(self) -> bool:
        return bool(self._memory[-1])

    def ask_to_end(self) -> None:
        """Request every rank to save and exit."""
        self._memory[-1] = 1

    def tell_stacks(self, rank: int) -> None:
        """Make this rank write the stacks of all threads on TELL_STACK, even while Python is blocked in C."""
        faulthandler.register(TELL_STACK, file=self._stacks[rank], all_threads=True)

    def stack_of(self, rank: int) -> str:
        """Return the stacks that a rank wrote on request, or an empty string."""
        descriptor = self._stacks[rank].fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


@dataclass(frozen=True)
class RankHeartbeat:
    """The heartbeat of one rank. Nobody reads it under another launcher."""

    rank: int = 0
    all: Heartbeats = field(default_factory=lambda: Heartbeats(1))

    def begin(self, step: int, phase: Phase) -> None:
        """Record that a phase of a step begins."""
        self.all.begin(self.rank, step, phase)

    def alive(self) -> None:
        """Record a heartbeat within a phase."""
        self.all.alive(self.rank)

    @property
    def asked_to_end(self) -> bool:
        return self.all.asked_to_end
