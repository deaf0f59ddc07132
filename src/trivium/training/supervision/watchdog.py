"""Finds ranks that hang, and names the one that the others wait for, with its stack."""

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trivium.comms.launch import RankFailed
from trivium.training.config import Supervision
from trivium.training.metrics import EVENTS, METRICS, append, last_step
from trivium.training.supervision.heartbeats import TELL_STACK, Heartbeat, Heartbeats, Phase
from trivium.units import listed

STEPS_REMEMBERED = 1000
STACK_SECONDS = 1.0  # time for ranks to write their stacks
# A launcher that did not look for so long was itself stopped, and its ranks perhaps with it.
ABSENT_SECONDS = 5.0
# A rank whose innermost calls are in one of these files waits for others.
WAITING_IN = (
    "torch/distributed/",
    "parallel/pipeline/clock.py",  # waits for the GPU, which waits for other ranks
    "comms/collectives.py",
    "kernels/crossing.py",
    "comms/group.py",
    "comms/transports.py",
    "comms/host_memory/",
    "comms/transfers.py",
)
FRAMES_SHOWN = 6
# Parts of errors by which a rank reports that another rank is gone: over host memory, gloo and NCCL.
LOST = ("has closed its connection", "Connection closed by peer", "Connection reset by peer", "remote process exited")


class Failure(NamedTuple):
    """The failure of a rank: its error, where in the training, and on which host.

    host_lost: whether that rank stopped answering, so that its host may have failed.
    """

    error: RankFailed
    at: Heartbeat
    host: str
    host_lost: bool = False

    def located(self, *, with_host: bool = True) -> RankFailed:
        """Return the error with the step, the phase and the host."""
        where = f" on {self.host}" if with_host else ""
        where += f" in step {self.at.step}" if self.at.step else ""
        where += "" if self.at.phase == "step" else f", {self.at.phase}"
        return RankFailed(self.error.rank, self.error.exits, self.error.report, where)

    @property
    def lost_another(self) -> bool:
        """Whether it failed because another rank is gone."""
        return any(words in str(self.error) for words in LOST)

    def note(self, out: Path, *, with_host: bool = True) -> None:
        """Append the failure to the events of the run. The host of a rank that lost a connection is not named, because
        a job file would exclude it, though another rank failed."""
        located = self.located(with_host=with_host)
        event = {"event": "rank failed", "rank": located.rank, "cause": str(located), "time": time.time()}
        event |= {} if self.lost_another else {"host": self.host}
        event |= {"host_lost": True} if self.host_lost else {}
        event |= {"step": last_step(out / METRICS), "in_step": self.at.step, "phase": self.at.phase}
        append(out / EVENTS, event)


def seconds_to_wait(config: Supervision, phase: Phase, *, is_first: bool) -> float:
    """Return the timeout of a collective in a phase of the first or a later step. It is long where a healthy rank may
    come late, because it starts or compiles. Ranks that save meet repeatedly meanwhile (checkpoint/agree.py)."""
    if phase == "saving" or (phase == "step" and not is_first):
        return config.timeout_seconds
    return max(config.timeout_seconds, config.stall_seconds)


class Patience:
    """The longest time without a heartbeat of a rank, derived from the durations of one rank's steps."""

    def __init__(self, config: Supervision) -> None:
        self.config = config
        self._seconds: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        self._last: Heartbeat | None = None

    def learn(self, beat: Heartbeat) -> None:
        """Record the duration of the steps since the last call. A process that resumes sends the number of an earlier
        step while it starts or validates, which is ignored."""
        if self._last is None and beat.phase != "step":
            return
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
        """Return the seconds without a heartbeat that count as hanging. The first step may take as long as a
        start, because nobody knows the duration of a step before."""
        if phase != "step":
            return self.config.stall_seconds
        return self.of_a_step if self._seconds else max(self.config.stall_seconds, self.config.hang_seconds)


class HangDetector(ABC):
    """Names the ranks that hang, when some rank is late. A subclass knows how to ask ranks for their stacks."""

    silence: str  # why a rank may not answer
    silence_is_proof: bool  # whether a rank that does not answer hangs though it is not late

    def __init__(self, config: Supervision, clock: Callable[[], float]) -> None:
        self.patience, self.clock = Patience(config), clock
        self._looked = self.forgiven = self._patient_until = clock()

    def wake(self, absent_seconds: float) -> bool:
        """Whether this process did not run for some time; then it forgives all ranks."""
        now = self.clock()
        absent = now - self._looked > absent_seconds
        self._looked = now
        if absent:
            self.forgiven = now
        return absent

    @abstractmethod
    def stacks(self) -> tuple[dict[int, str], list[int]]:
        """Return the innermost frames of all ranks, and the ranks that do not answer."""

    def find(self, late: Iterable[int]) -> tuple[list[int], str, dict[int, str]] | None:
        """Return the ranks that hang, why they are to blame, and all stacks; None if no rank is late, or if the late
        ranks wait for one that starts or saves and still has time."""
        late = set(late)
        if not late or self.clock() <= self._patient_until:
            return None
        stacks, mute = self.stacks()
        guilty, how = blame(stacks, mute, self.silence)
        if late.isdisjoint(guilty) and not (mute and self.silence_is_proof):
            self._patient_until = self.clock() + self.patience.of_a_step
            return None
        return guilty, how, stacks


class Watchdog(HangDetector):
    """Checks the heartbeats of the ranks of this machine; raises RankFailed with the rank that hangs."""

    silence, silence_is_proof = "it is stopped (SIGSTOP or a debugger)", True

    def __init__(
        self, heartbeats: Heartbeats, pids: Sequence[int], config: Supervision, clock: Callable[[], float] | None = None
    ) -> None:
        super().__init__(config, clock or time.monotonic)
        self.heartbeats, self.pids = heartbeats, tuple(pids)

    def look(self) -> None:
        """Raise RankFailed if a rank gave no heartbeat for longer than its phase may take."""
        self.wake(ABSENT_SECONDS)
        beats = [self.heartbeats.of(rank) for rank in range(self.heartbeats.world_size)]
        self.patience.learn(beats[0])
        silent = [self.clock() - max(beat.at, self.forgiven) for beat in beats]
        step = self.patience.of_a_step
        hung = self.find(
            rank
            for rank, (beat, seconds) in enumerate(zip(beats, silent, strict=True))
            if seconds > self.patience.limit(beat.phase) or (seconds > step and is_stopped(self.pids[rank]))
        )
        if hung is not None:
            raise hanging(*hung, max(silent), self.patience.limit(beats[hung[0][0]].phase))

    def stacks(self) -> tuple[dict[int, str], list[int]]:
        """Return the main threads' innermost frames. A stopped rank is continued for the time that this takes."""
        ranks = range(self.heartbeats.world_size)
        stopped = [rank for rank in ranks if is_stopped(self.pids[rank])]
        before = [len(self.heartbeats.stack_of(rank)) for rank in ranks]
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], TELL_STACK)
                if rank in stopped:
                    os.kill(self.pids[rank], signal.SIGCONT)
        deadline = time.monotonic() + STACK_SECONDS
        written = [""] * len(before)
        while time.monotonic() < deadline and not all(map(innermost, written)):
            time.sleep(0.01)
            written = [self.heartbeats.stack_of(rank)[before[rank] :] for rank in ranks]
        return {rank: innermost(text) or signalled(text) for rank, text in enumerate(written)}, stopped


def blame(stacks: Mapping[int, str], mute: Sequence[int], silence: str) -> tuple[list[int], str]:
    """Return the ranks that hang, and why: those that do not answer (`silence` is the reason), or else those whose
    stacks do not wait for others, or else all."""
    if mute:
        return list(mute), silence
    working = [rank for rank, stack in stacks.items() if not waits(stack)]
    return (working, "the others wait for it") if working else (list(stacks), "every rank waits for another")


def hanging(guilty: Sequence[int], how: str, stacks: Mapping[int, str], seconds: float, limit: float) -> RankFailed:
    """Return the error that the first of the guilty ranks hangs, with its stack."""
    others = f" (with ranks {listed(guilty[1:])})" if guilty[1:] else ""
    stack = stacks[guilty[0]] or "  (it did not write its stack)"
    report = (
        f"hangs{others}: no heartbeat for {seconds:.1f} s; the limit is {limit:.1f} s; {how}. If it is only slow, "
        f"raise training.supervision.hang_seconds and stall_seconds. Its stack:\n{stack}"
    )
    return RankFailed(guilty[0], dict.fromkeys(stacks), report)


def percentile_99(seconds: Sequence[float]) -> float:
    """Return the nearest-rank 99th percentile, or 0 if there are no values."""
    ordered = sorted(seconds)
    return ordered[max(0, -(-99 * len(ordered) // 100) - 1)] if ordered else 0.0


def innermost(stacks: str) -> str:
    """Return the innermost frames of the thread that trains, from all threads' stacks as faulthandler writes them. It
    writes at most a hundred frames and then three dots: of a stack cut off so, the thread that got the signal."""
    parts = stacks.split("\n\n")
    cut = [part for part in parts if part.startswith("Current thread") and part.rstrip().endswith("  ...")]
    threads = [part for part in parts if "in train_rank" in part] or cut
    frames = [line for line in threads[-1].splitlines() if line.startswith("  File")] if threads else []
    return "\n".join(frames[:FRAMES_SHOWN])


def signalled(stacks: str) -> str:
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
