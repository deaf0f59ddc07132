"""One life of the training: a launcher and its ranks in processes of their own, until they are killed."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

from trivium.comms.launch import end_with
from trivium.errors import TriviumError
from trivium.training.loop import TrainingJob
from trivium.training.supervision.job import start
from trivium.training.supervision.preemption import ENDING
from trivium.training.supervision.watchdog import stat_of

POLL_SECONDS = 0.0005
PATIENCE_SECONDS = 120.0


@dataclass
class Life:
    """A training that runs beside this process."""

    launcher: ForkProcess
    log: Path

    @classmethod
    def begin(cls, job: TrainingJob, log: Path) -> "Life":
        """Start it; what it prints goes to `log`."""
        log.unlink(missing_ok=True)
        process = get_context("fork").Process(target=_live, args=(job, log, os.getpid()))
        process.start()
        return cls(process, log)

    @property
    def ranks(self) -> list[int]:
        """The process ids of its ranks that live now."""
        pid = self.launcher.pid
        try:
            return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    @property
    def lives(self) -> bool:
        return self.launcher.is_alive()

    def wait_for(self, seen: Callable[[], bool]) -> bool:
        """Wait until something is seen, or it is over; whether it was seen."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.lives:
            if seen():
                return True
            if time.monotonic() > deadline:
                self.kill(launcher=True, victim=0)
                raise TriviumError(
                    f"the training did nothing for {PATIENCE_SECONDS:.0f} s; the last it said: {self.last_words}"
                )
            time.sleep(POLL_SECONDS)
        return False

    def signal(self, number: signal.Signals, *pids: int) -> None:
        """Send a signal to processes, as far as they still are."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def pid(self) -> int:
        """The launcher's process id."""
        return self.launcher.pid or 0

    @property
    def exit_code(self) -> int | None:
        """The launcher's, None while it lives; negative: the signal that killed it."""
        return self.launcher.exitcode

    @property
    def last_words(self) -> str:
        """The last line of what it printed."""
        lines = (
            self.log.read_text(encoding="utf-8", errors="replace").split("\n") if self.log.exists() else []
        )
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")

    @property
    def own_end(self) -> str:
        """How it ended, where nothing that was done to it made it; nothing while it lives."""
        if self.lives:
            return ""
        return f"the training ended by itself with exit code {self.exit_code}; the last it said: {self.last_words}"

    def gone_within(self, seconds: float, ranks: Sequence[int]) -> float | None:
        """Seconds until the launcher and these ranks are gone, or None when they are not after so many."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            if not self.lives and not any(_runs(rank) for rank in ranks):
                return time.monotonic() - begin
            time.sleep(POLL_SECONDS)
        return None

    def kill(self, *, launcher: bool, victim: int) -> None:
        """SIGKILL the launcher or a rank, and wait until all are gone."""
        if not self.lives:  # its number may be another process's by now
            return
        ranks = self.ranks
        pid = self.launcher.pid if launcher or not ranks else ranks[victim % len(ranks)]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid or 0, signal.SIGKILL)
        self.join()
        while any(_runs(rank) for rank in ranks):
            time.sleep(POLL_SECONDS)

    def join(self) -> None:
        """Wait until the launcher has ended."""
        self.launcher.join()


def _runs(pid: int) -> bool:
    """A zombie has stopped, and whoever inherited it will collect it, once its other threads have: the last of them
    closes its files, and with them the lock of the run directory."""
    try:
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return False
    return threads > 1 or _state(pid) not in ("", "Z")


def _state(pid: int) -> str:
    """The letter of proc(5) for what a process does; D: it waits for a disk, and cannot even die. Nothing: gone."""
    return "".join(stat_of(pid)[:1])


def states(pids: Sequence[int]) -> dict[int, str]:
    """The state of every thread of the processes that are left."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            threads = sorted(Path(f"/proc/{pid}/task").iterdir())
            found[pid] = "".join(_state(int(t.name)) for t in threads)
    return found


def end_all() -> None:
    """Kill what this process has forked and not ended, and with each launcher its ranks."""
    for process in active_children():
        if isinstance(process, ForkProcess):
            Life(process, Path()).kill(launcher=True, victim=0)


def _live(job: TrainingJob, log: Path, parent: int) -> None:
    end_with(parent)
    for number in ENDING:  # as a process that a user starts has them
        signal.signal(number, signal.SIG_DFL)
    tempfile.tempdir = str(log.parent)  # what a killed launcher leaves goes with the folder of all
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    code = 0
    try:
        start(job)
    except TriviumError as error:
        os.write(descriptor, f"error: {error}\n".encode())
        code = error.exit_code
    os._exit(code)
