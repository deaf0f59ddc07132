"""Finds ranks that hang (no heartbeat for too long), and names the one that the others wait for, with its stack."""

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trivium.comms.launch import RankFailed
from trivium.training.config import Supervision
from trivium.training.supervision.pulse import TELL_STACK, Beat, Phase, Pulse
from trivium.units import listed

STEPS_REMEMBERED = 1000
STACK_SECONDS = 1.0  # in which ranks have to write their stacks
# If a launcher did not look for so long, it was itself stopped, and its ranks perhaps with it.
ABSENT_SECONDS = 5.0
# A rank whose innermost calls are in one of these files waits for others.
WAITING_IN = (
    "torch/distributed/",
    "parallel/pipeline/clock.py",  # of its accelerator, which waits for others
    "comms/collectives.py",
    "kernels/crossing.py",
    "comms/group.py",
    "comms/transports.py",
    "comms/host_memory/",
    "comms/transfers.py",
)
FRAMES_SHOWN = 6


def seconds_to_wait(config: Supervision, phase: Phase, *, is_first: bool) -> float:
    """For the others in a collective of a phase: long where one that is well may come late, because it starts, or
    compiles what the phase does first. Those that save meet again and again meanwhile (checkpoint/agree.py)."""
    if phase == "saving" or (phase == "step" and not is_first):
        return config.timeout_seconds
    return max(config.timeout_seconds, config.stall_seconds)


class Patience:
    """How long a rank may give no heartbeat; learnt from the durations of one rank's steps."""

    def __init__(self, config: Supervision) -> None:
        self.config = config
        self._seconds: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        self._last: Beat | None = None

    def learn(self, beat: Beat) -> None:
        """Record the duration of the steps since the last heartbeat."""
        steps = beat.step - (self._last.step if self._last else 0)
        if steps > 0:
            if self._last is not None and self._last.step > 0:
                self._seconds.append((beat.since - self._last.since) / steps)
            self._last = beat

    @property
    def of_a_step(self) -> float:
        """Seconds after which a step counts as hanging."""
        return max(3 * percentile_99(self._seconds), self.config.hang_seconds)

    def limit(self, phase: str) -> float:
        """Return the seconds without a heartbeat that count as hanging. Before a step is over its duration is unknown:
        the first one has as long as a start."""
        if phase != "step":
            return self.config.stall_seconds
        return self.of_a_step if self._seconds else max(self.config.stall_seconds, self.config.hang_seconds)


class Watchdog:
    """Checks the heartbeats of ranks periodically; raises RankFailed with the rank that hangs."""

    def __init__(
        self, pulse: Pulse, pids: Sequence[int], config: Supervision, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pulse, self.pids, self.patience, self._clock = pulse, tuple(pids), Patience(config), clock
        self._looked = self._forgiven = self._patient_until = clock()

    def look(self) -> None:
        """Raise RankFailed if a rank gave no heartbeat for longer than its phase may take."""
        now = self._clock()
        if now - self._looked > ABSENT_SECONDS:
            self._forgiven = now
        self._looked = now
        self.patience.learn(self.pulse.of(0))
        beats = self.pulse.beats()
        silent = [now - max(b.at, self._forgiven) for b in beats]
        if now > self._patient_until and any(self._hangs(rank, s) for rank, s in enumerate(silent)):
            self._name(max(silent))

    def _hangs(self, rank: int, silent: float) -> bool:
        return self._is_late(rank) or (silent > self.patience.of_a_step and is_stopped(self.pids[rank]))

    def _is_late(self, rank: int) -> bool:
        beat = self.pulse.of(rank)
        return self._clock() - max(beat.at, self._forgiven) > self.patience.limit(beat.phase)

    def _name(self, seconds: float) -> None:
        ranks = range(self.pulse.world_size)
        stopped = [r for r in ranks if is_stopped(self.pids[r])]
        stacks = self._stacks(stopped)
        guilty, how = blame(stacks, stopped, "it is stopped (SIGSTOP or a debugger)")
        if not stopped and not any(self._is_late(rank) for rank in guilty):
            # The late rank waits for one that starts or saves, which still has time.
            self._patient_until = self._clock() + self.patience.of_a_step
            return
        limit = self.patience.limit(self.pulse.of(guilty[0]).phase)
        raise hanging(guilty, how, stacks, seconds, limit)

    def _stacks(self, stopped: Sequence[int]) -> dict[int, str]:
        """Return the main threads' innermost frames; a stopped rank is continued for the time that this takes."""
        ranks = range(self.pulse.world_size)
        before = [len(self.pulse.stack_of(rank)) for rank in ranks]
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], TELL_STACK)
                if rank in stopped:
                    os.kill(self.pids[rank], signal.SIGCONT)
        deadline = time.monotonic() + STACK_SECONDS
        told = [""] * len(before)
        while time.monotonic() < deadline and not all(innermost(stacks) for stacks in told):
            time.sleep(0.01)
            told = [self.pulse.stack_of(rank)[before[rank] :] for rank in ranks]
        return {rank: innermost(stacks) or asked(stacks) for rank, stacks in enumerate(told)}


def blame(stacks: Mapping[int, str], silent: Sequence[int], silence: str) -> tuple[list[int], str]:
    """Return the ranks that hang, by the innermost frames of all ranks, and why: those that do not answer (`silence`
    is the reason), or else those that do not wait for others, or else all."""
    working = [rank for rank, stack in stacks.items() if not waits(stack)]
    if silent:
        return list(silent), silence
    if working:
        return working, "the others wait for it"
    return list(stacks), "every rank waits for another"


def hanging(guilty: Sequence[int], how: str, stacks: Mapping[int, str], seconds: float, limit: float) -> RankFailed:
    """Return the error that the first of the guilty ranks hangs, with its stack."""
    others = f" (with ranks {listed(guilty[1:])})" if guilty[1:] else ""
    told = stacks[guilty[0]] or "  (it did not write its stack)"
    report = (
        f"hangs{others}: no heartbeat for {seconds:.1f} s; the limit is {limit:.1f} s; {how}. If it is only slow, "
        f"raise training.supervision.hang_seconds and stall_seconds. Its stack:\n{told}"
    )
    return RankFailed(guilty[0], dict.fromkeys(stacks), report)


def percentile_99(seconds: Sequence[float]) -> float:
    """Return the nearest-rank 99th percentile, or 0 if there are no values."""
    ordered = sorted(seconds)
    return ordered[max(0, -(-99 * len(ordered) // 100) - 1)] if ordered else 0.0


def innermost(stacks: str) -> str:
    """Of all threads' stacks as faulthandler writes them, the innermost frames of the one that trains. Of a hundred
    frames and more (modules that import modules) it writes a hundred and three dots: then of the one that was asked."""
    parts = stacks.split("\n\n")
    cut = [part for part in parts if part.startswith("Current thread") and part.rstrip().endswith("  ...")]
    threads = [part for part in parts if "in train_rank" in part] or cut
    if not threads:
        return ""
    frames = [line for line in threads[-1].splitlines() if line.startswith("  File")]
    return "\n".join(frames[:FRAMES_SHOWN])


def asked(stacks: str) -> str:
    """Return the innermost frames of the thread that received the signal, even if its stack was cut off."""
    parts = [part for part in stacks.split("\n\n") if part.startswith("Current thread")]
    return "\n".join(parts[-1].splitlines()[1 : 1 + FRAMES_SHOWN]) if parts else ""


def waits(stack: str) -> bool:
    """Whether a rank with this stack waits for other ranks."""
    return any(place in line for line in stack.splitlines()[:4] for place in WAITING_IN)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger; False if the system does not tell."""
    return stat_of(pid)[:1] in (["T"], ["t"])


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, …; empty if the process is gone or there is no
    /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
