"""One life of the training: a launcher and its ranks in separate processes, until they are killed."""

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
from trivium.training.supervision.preemption import SIGNALS
from trivium.training.supervision.watchdog import stat_of

POLL_SECONDS = 0.0005
PATIENCE_SECONDS = 120.0


@dataclass
class Life:
    """A training that runs concurrently with this process."""

    launcher: ForkProcess
    log: Path

    @classmethod
    def begin(cls, job: TrainingJob, log: Path) -> "Life":
        """Start a training; its output goes to `log`."""
        log.unlink(missing_ok=True)
        process = get_context("fork").Process(target=_live, args=(job, log, os.getpid()))
        process.start()
        return cls(process, log)

    @property
    def ranks(self) -> list[int]:
        """The process ids of the ranks that are alive now."""
        pid = self.launcher.pid
        try:
            return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    @property
    def lives(self) -> bool:
        return self.launcher.is_alive()

    def wait_for(self, seen: Callable[[], bool]) -> bool:
        """Wait until `seen` or the end of the training; return whether `seen` came first."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.lives:
            if seen():
                return True
            if time.monotonic() > deadline:
                self.kill(launcher=True, victim=0)
                raise TriviumError(
                    f"the training did nothing for {PATIENCE_SECONDS:.0f} s; its last line: {self.last_line}"
                )
            time.sleep(POLL_SECONDS)
        return False

    def signal(self, number: signal.Signals, *pids: int) -> None:
        """Send a signal to those of the processes that still exist."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def pid(self) -> int:
        """The launcher's process id."""
        return self.launcher.pid or 0

    @property
    def exit_code(self) -> int | None:
        """The launcher's exit code, None while it lives, or minus the number of the signal that killed it."""
        return self.launcher.exitcode

    @property
    def last_line(self) -> str:
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "nothing")

    @property
    def own_end(self) -> str:
        """How the training ended before any fault was injected; empty while it lives."""
        if self.lives:
            return ""
        return f"the training ended by itself with exit code {self.exit_code}; its last line: {self.last_line}"

    def gone_within(self, seconds: float, ranks: Sequence[int]) -> float | None:
        """Return the seconds until the launcher and these ranks are gone, or None if they are not gone in time."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            if not self.lives and not any(_runs(rank) for rank in ranks):
                return time.monotonic() - begin
            time.sleep(POLL_SECONDS)
        return None

    def kill(self, *, launcher: bool, victim: int) -> None:
        """SIGKILL the launcher or a rank, and wait until all processes are gone."""
        if not self.lives:  # its process id may have been reused
            return
        ranks = self.ranks
        pid = self.launcher.pid if launcher or not ranks else ranks[victim % len(ranks)]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid or 0, signal.SIGKILL)
        self.launcher.join()
        while any(_runs(rank) for rank in ranks):
            time.sleep(POLL_SECONDS)


def _runs(pid: int) -> bool:
    """Whether any thread of a process runs. The first thread may be a zombie while others still keep the process's
    files open, and with them the lock of the run directory."""
    try:
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return False
    return threads > 1 or _state(pid) not in ("", "Z")


def _state(pid: int) -> str:
    """Return the state letter of proc(5), or an empty string if the process is gone."""
    return "".join(stat_of(pid)[:1])


def states(pids: Sequence[int]) -> dict[int, str]:
    """Return the states of all threads of each process that is left."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            threads = sorted(Path(f"/proc/{pid}/task").iterdir())
            found[pid] = "".join(_state(int(t.name)) for t in threads)
    return found


def end_all() -> None:
    """Kill the processes that this process has forked; each launcher's ranks end with it."""
    for process in active_children():
        if isinstance(process, ForkProcess):
            Life(process, Path()).kill(launcher=True, victim=0)


def _live(job: TrainingJob, log: Path, parent: int) -> None:
    end_with(parent)
    for number in (*SIGNALS, signal.SIGHUP):  # as in a process that a user starts
        signal.signal(number, signal.SIG_DFL)
    tempfile.tempdir = str(log.parent)  # so that leftovers of a killed launcher are removed too
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
