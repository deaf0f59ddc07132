"""Find ranks that hang: no sign of life for too long; and name the one the others wait for, with its stack."""

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from trivium.parallel.launch import RankFailed
from trivium.training.config import Supervision
from trivium.training.pulse import TELL_STACK, Pulse

STEPS_REMEMBERED = 1000
STACK_SECONDS = 1.0  # that ranks have to tell their stacks in
# A launcher that did not look for so long was itself stopped, and its ranks perhaps with it.
ABSENT_SECONDS = 5.0
# Where a rank is whose innermost calls are in one of these: it waits for others.
WAITING_IN = (
    "torch/distributed/",
    "parallel/collectives.py",
    "parallel/exchange.py",
    "parallel/transport.py",
)
FRAMES_SHOWN = 6


class Watchdog:
    """Looks at the pulse of ranks again and again; RankFailed names the rank that hangs."""

    def __init__(
        self,
        pulse: Pulse,
        pids: Sequence[int],
        config: Supervision,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pulse, self.pids, self.config, self._clock = pulse, tuple(pids), config, clock
        self._seconds: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        self._last = pulse.of(0)
        self._looked = self._forgiven = clock()

    def look(self) -> None:
        """RankFailed when a rank gave no sign of life for longer than its phase may take."""
        now = self._clock()
        if now - self._looked > ABSENT_SECONDS:
            self._forgiven = now
        self._looked = now
        self._measure()
        beats = self.pulse.beats()
        silent = [now - max(b.at, self._forgiven) for b in beats]
        if any(self._hangs(rank, s) for rank, s in enumerate(silent)):
            self._name(max(silent))

    def limit(self, phase: str) -> float:
        """Seconds without a sign of life that count as hanging."""
        if phase != "step":
            return self.config.stall_seconds
        return max(3 * percentile_99(self._seconds), self.config.hang_seconds)

    def _hangs(self, rank: int, silent: float) -> bool:
        limit = self.limit(self.pulse.of(rank).phase)
        return silent > limit or (silent > self.limit("step") and is_stopped(self.pids[rank]))

    def _measure(self) -> None:
        """Take the time of the steps since the last look, from the first rank's signs of life."""
        beat = self.pulse.of(0)
        steps = beat.step - self._last.step
        if steps > 0:
            if self._last.step > 0:
                self._seconds.append((beat.at - self._last.at) / steps)
            self._last = beat

    def _name(self, seconds: float) -> None:
        ranks = range(self.pulse.world_size)
        stopped = [r for r in ranks if is_stopped(self.pids[r])]
        stacks = self._stacks(stopped)
        working = [r for r in ranks if not waits(stacks[r])]
        guilty = stopped or working or list(ranks)
        first = guilty[0]
        if stopped:
            how = "it is stopped (SIGSTOP or a debugger)"
        elif working:
            how = "the others wait for it"
        else:
            how = "every rank waits for another"
        others = f" (with ranks {', '.join(map(str, guilty[1:]))})" if guilty[1:] else ""
        beat = self.pulse.of(first)
        told = stacks[first] or "  (it could not tell its stack)"
        report = (
            f"hangs{others}: no sign of life for {seconds:.1f} s, where {self.limit(beat.phase):.1f} s are the limit; "
            f"{how}; its stack:\n{told}"
        )
        raise RankFailed(first, dict.fromkeys(ranks), report)

    def _stacks(self, stopped: Sequence[int]) -> dict[int, str]:
        """The main threads' innermost frames; a stopped rank goes on for the moment that telling takes."""
        ranks = range(self.pulse.world_size)
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], TELL_STACK)
                if rank in stopped:
                    os.kill(self.pids[rank], signal.SIGCONT)
        deadline = time.monotonic() + STACK_SECONDS
        while time.monotonic() < deadline:
            if all("train_rank" in self.pulse.stack_of(rank) for rank in ranks):
                break
            time.sleep(0.01)
        return {rank: innermost(self.pulse.stack_of(rank)) for rank in ranks}


def percentile_99(seconds: Sequence[float]) -> float:
    """The nearest-rank 99th percentile; 0 of nothing."""
    ordered = sorted(seconds)
    return ordered[max(0, -(-99 * len(ordered) // 100) - 1)] if ordered else 0.0


def innermost(stacks: str) -> str:
    """Of all threads' stacks as faulthandler writes them, the innermost frames of the one that trains."""
    threads = [part for part in stacks.split("\n\n") if "in train_rank" in part]
    if not threads:
        return ""
    frames = [line for line in threads[-1].splitlines() if line.startswith("  File")]
    return "\n".join(frames[:FRAMES_SHOWN])


def waits(stack: str) -> bool:
    """Whether a rank with this stack waits for other ranks."""
    return any(place in line for line in stack.splitlines()[:4] for place in WAITING_IN)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger; where the system does not say, it is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in ("T", "t")
