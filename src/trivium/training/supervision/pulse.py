"""What ranks tell their launcher while they work: the step they do, in memory they share; and, asked, their stacks."""

import faulthandler
import mmap
import os
import signal
import struct
import tempfile
import time
from dataclasses import dataclass, field
from typing import IO, Literal, NamedTuple, get_args

from trivium.training.supervision.preemption import Requests

Phase = Literal["starting", "step", "tracing", "validating", "evaluating", "saving"]
PHASES: tuple[Phase, ...] = get_args(Phase)
TELL_STACK = signal.SIGUSR2
_ROW = struct.Struct("qqdd")  # step, phase, when it began, when it was last told of
_TIME = struct.Struct("d")


class Beat(NamedTuple):
    """The last sign of life of a rank. step: counted from 1, the one it does or has just done; at: when it was given,
    and since: when the step's phase began, both monotonic."""

    step: int
    phase: Phase
    at: float
    since: float


class Pulse:
    """A row of shared memory for each rank, and a byte for the launcher. Made before the ranks are forked."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._memory = mmap.mmap(-1, world_size * _ROW.size + 1)
        self._stacks: list[IO[bytes]] = [_open_file() for _ in range(world_size)]
        for rank in range(world_size):
            self.beat(rank, 0, "starting")

    def beat(self, rank: int, step: int, phase: Phase) -> None:
        """A sign of life: a phase of a step begins."""
        now = time.monotonic()
        _ROW.pack_into(self._memory, rank * _ROW.size, step, PHASES.index(phase), now, now)

    def go_on(self, rank: int) -> None:
        """A sign of life in the midst of a phase."""
        _TIME.pack_into(self._memory, (rank + 1) * _ROW.size - _TIME.size, time.monotonic())

    def of(self, rank: int) -> Beat:
        """The last sign of life of a rank."""
        step, phase, since, at = _ROW.unpack_from(self._memory, rank * _ROW.size)
        return Beat(step, PHASES[phase], at, since)

    def beats(self) -> list[Beat]:
        """Those of all ranks."""
        return [self.of(rank) for rank in range(self.world_size)]

    @property
    def ends(self) -> bool:
        """Whether the launcher was asked to end."""
        return bool(self._memory[-1])

    def ask_to_end(self) -> None:
        """Tell every rank that the launcher was asked to end."""
        self._memory[-1] = 1

    def tell_stacks(self, rank: int) -> None:
        """In a rank: write the stacks of all threads when TELL_STACK comes, even while Python is stuck in C."""
        faulthandler.register(TELL_STACK, file=self._stacks[rank], all_threads=True)

    def stack_of(self, rank: int) -> str:
        """What a rank wrote when it was asked for its stacks; empty when it was not, or could not."""
        descriptor = self._stacks[rank].fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def _open_file() -> IO[bytes]:
    return tempfile.TemporaryFile()


@dataclass(frozen=True)
class Post:
    """One rank's place at the pulse. A rank without a launcher of ours has one that nobody reads."""

    rank: int = 0
    pulse: Pulse = field(default_factory=lambda: Pulse(1))

    def beat(self, step: int, phase: Phase) -> None:
        """A sign of life: a phase of a step begins."""
        self.pulse.beat(self.rank, step, phase)

    def go_on(self) -> None:
        """A sign of life in the midst of a phase."""
        self.pulse.go_on(self.rank)

    @property
    def ends(self) -> bool:
        """Whether the launcher was asked to end."""
        return self.pulse.ends


@dataclass(frozen=True)
class Duty:
    """What the training loop of a rank owes others: signs of life, and to end when it was asked to."""

    requests: Requests
    post: Post

    def beat(self, step: int, phase: Phase) -> None:
        """A sign of life: a phase of a step begins."""
        self.post.beat(step, phase)

    @property
    def asks(self) -> bool:
        """Whether this rank, or its launcher, was asked to end."""
        return bool(self.requests.asked) or self.post.ends
