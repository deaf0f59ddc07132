"""Heartbeats of ranks to their launcher: the current step, in shared memory; and their stacks, on request."""

import faulthandler
import mmap
import os
import signal
import struct
import tempfile
import time
from dataclasses import dataclass, field
from typing import IO, Literal, NamedTuple, get_args

Phase = Literal["starting", "step", "tracing", "validating", "evaluating", "saving"]
PHASES: tuple[Phase, ...] = get_args(Phase)
TELL_STACK = signal.SIGUSR2
_ROW = struct.Struct("qqdd")  # step, phase, when the phase began, time of the last heartbeat
_TIME = struct.Struct("d")


class Beat(NamedTuple):
    """The last heartbeat of a rank. step: counted from 1, the current one or the one just done. at: its time. since:
    when the phase began. Both are monotonic."""

    step: int
    phase: Phase
    at: float
    since: float


class Pulse:
    """A row of shared memory for each rank, and a byte for the launcher. It is created before the ranks are forked."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._memory = mmap.mmap(-1, world_size * _ROW.size + 1)
        self._stacks: list[IO[bytes]] = [_open_file() for _ in range(world_size)]
        for rank in range(world_size):
            self.beat(rank, 0, "starting")

    def beat(self, rank: int, step: int, phase: Phase) -> None:
        """Record a heartbeat: a phase of a step begins."""
        now = time.monotonic()
        _ROW.pack_into(self._memory, rank * _ROW.size, step, PHASES.index(phase), now, now)

    def go_on(self, rank: int) -> None:
        """Record a heartbeat within a phase."""
        _TIME.pack_into(self._memory, (rank + 1) * _ROW.size - _TIME.size, time.monotonic())

    def of(self, rank: int) -> Beat:
        """Return the last heartbeat of a rank."""
        step, phase, since, at = _ROW.unpack_from(self._memory, rank * _ROW.size)
        return Beat(step, PHASES[phase], at, since)

    def beats(self) -> list[Beat]:
        """Return the last heartbeats of all ranks."""
        return [self.of(rank) for rank in range(self.world_size)]

    @property
    def ends(self) -> bool:
        """Whether the launcher was asked to end."""
        return bool(self._memory[-1])

    def ask_to_end(self) -> None:
        """Ask every rank to save and end."""
        self._memory[-1] = 1

    def tell_stacks(self, rank: int) -> None:
        """In a rank: write the stacks of all threads when TELL_STACK is received, even while Python is blocked in C."""
        faulthandler.register(TELL_STACK, file=self._stacks[rank], all_threads=True)

    def stack_of(self, rank: int) -> str:
        """Return the stacks that a rank wrote on request, or an empty string."""
        descriptor = self._stacks[rank].fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def _open_file() -> IO[bytes]:
    return tempfile.TemporaryFile()


@dataclass(frozen=True)
class Post:
    """Where one rank records its heartbeats. Without a launcher of ours nobody reads them."""

    rank: int = 0
    pulse: Pulse = field(default_factory=lambda: Pulse(1))

    def beat(self, step: int, phase: Phase) -> None:
        """Record a heartbeat: a phase of a step begins."""
        self.pulse.beat(self.rank, step, phase)

    def go_on(self) -> None:
        """Record a heartbeat within a phase."""
        self.pulse.go_on(self.rank)

    @property
    def ends(self) -> bool:
        """Whether the launcher was asked to end."""
        return self.pulse.ends
