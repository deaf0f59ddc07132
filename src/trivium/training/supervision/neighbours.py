"""Supervision of ranks by one another, for launchers that do not supervise them: torchrun and srun.

A thread of each rank writes heartbeats to the board (comms/board.py); the first and the last rank, which seldom share a
host, read them. The one that finds a rank that hangs requests the stacks of all ranks and names it, and every rank
ends. A rank that fails writes so, so that the others need not wait in a collective that never ends. A rank that was
killed writes nothing: ranks on its host see that its process is gone, and a rank that lost it looks whose heartbeats
have stopped.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from trivium.comms.board import Board
from trivium.comms.launch import Place, RankFailed, meeting_point
from trivium.training.config import Supervision
from trivium.training.metrics import warn
from trivium.training.supervision.heartbeats import Heartbeat, Heartbeats, Phase
from trivium.training.supervision.watchdog import (
    ABSENT_SECONDS,
    FRAMES_SHOWN,
    STACK_SECONDS,
    Failure,
    HangDetector,
    hanging,
    stat_of,
)
from trivium.units import listed

ROUNDS_A_LIMIT = 10  # heartbeats in the time after which a rank counts as hanging
LONGEST_ROUND_SECONDS = 3.0
KEPT_SECONDS = 2 * LONGEST_ROUND_SECONDS  # for which the board stays after the last message
GONE = (
    "its process ended without a report: killed (perhaps by the kernel for lack of memory), or crashed; see the "
    "system's log"
)
LEFT = "it no longer answers: killed (perhaps by the kernel for lack of memory), crashed, or its host has failed"
FIRST_GONE = (
    "its host, which runs the store of all ranks, no longer answers: it has failed or is cut off; ranks on other hosts "
    "end because of that"
)
TIMED_OUT = "Timed out waiting"  # gloo's error about a peer that sends nothing, as after a cut cable
KNOCKING_SECONDS = 5.0  # time for the first host to accept or reject a connection
ENDING_SECONDS = 2.0  # between two such attempts: of a host that is killed, the store of all ranks may end last
TELL_STACKS, NAMED, FAILED, LOOKS = "tell stacks", "named", "failed", "looks"


@dataclass(frozen=True)
class News:
    """A message of a rank on the board. number: counts its messages. silent: seconds since its training's last
    heartbeat, by its own clock. is_over: it ends, and writes nothing more. stack: innermost frames, on request."""

    number: int
    step: int
    phase: Phase
    silent: float
    host: str
    pid: int
    launcher: int
    is_over: bool = False
    stack: str = ""

    @property
    def at(self) -> Heartbeat:
        return Heartbeat(self.step, self.phase, 0.0, 0.0)

    @property
    def is_here(self) -> bool:
        """Whether the launcher of this process started that rank too, on this host."""
        return self.host == socket.gethostname() and self.launcher == os.getppid()


class Neighbours(HangDetector):
    """One rank's part in the supervision. tell: called by the one rank that names another that hangs or is gone."""

    silence = "it does not answer: stopped (SIGSTOP or a debugger), or its host has failed"
    silence_is_proof = False

    def __init__(
        self,
        place: Place,
        heartbeats: Heartbeats,
        config: Supervision,
        tell: Callable[[Failure], None],
        board: Board,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(config, clock)
        self.place, self.heartbeats, self.tell, self.board = place, heartbeats, tell, board
        self._is_reader = place.rank in (0, place.world_size - 1)
        self._names = [f"rank {rank}" for rank in range(place.world_size)]
        first = place.rank - place.local_rank
        self._siblings = range(max(0, first), min(first + place.local_ranks, place.world_size))
        self._missed = set[int]()  # siblings whose processes were gone in the last round
        self._number = 0
        self._heard = [(0, clock())] * place.world_size  # number and arrival of each rank's last message

    @property
    def round_seconds(self) -> float:
        """Seconds between two heartbeats."""
        return min(self.patience.of_a_step / ROUNDS_A_LIMIT, LONGEST_ROUND_SECONDS)

    def turn(self) -> list[News] | None:
        """Write a heartbeat and read those of others. Returns None while all is well. Otherwise every rank ends, and
        this returns the messages of the ranks that hang and were named."""
        if self.wake(max(ABSENT_SECONDS, 2 * self.round_seconds)):
            self._heard = [(number, self.clock()) for number, _ in self._heard]
        self.patience.learn(self.heartbeats.of(0))
        self.write()
        if self._is_reader and not self.board.has(NAMED):
            self._look()
        gone = self._gone()  # before the board is read: ranks leave without a word once it names one
        if self.board.has(NAMED):
            return [News(**each) for each in json.loads(self.board.read([NAMED])[0])]
        if self.board.has(FAILED):
            self._say_who_failed()
            return []
        twice, self._missed = self._missed.intersection(gone), set(gone)  # the last message of a rank may be on its way
        if not twice:
            return None
        cause = self.fail(self._without_a_word({rank: gone[rank] for rank in sorted(twice)}, GONE))
        if cause is not None:
            self.tell(cause)
        return []

    def write(self, *, is_over: bool = False) -> None:
        """Write this rank's message."""
        beat = self.heartbeats.of(0)
        self._number += 1
        stack = stack_of_main_thread() if self.board.has(TELL_STACKS) else ""
        silent = self.clock() - max(beat.at, self.forgiven)
        ids = (socket.gethostname(), os.getpid(), os.getppid())
        news = News(self._number, beat.step, beat.phase, silent, *ids, is_over, stack)
        self.board.write(self._names[self.place.rank], json.dumps(asdict(news)))

    def fail(self, failure: Failure) -> Failure | None:
        """Report that this rank has failed, or which rank it lost. Returns what was reported, or None if another rank
        had failed before and is the cause."""
        cause = self._who_was_lost(failure) if failure.lost_another else failure
        if self.board.write_first(FAILED, str(cause.located())):
            return cause
        self._say_who_failed()
        return None

    def keep_board(self) -> None:
        """Keep the first rank, whose process may own the board, until all others have read it."""
        if self.place.rank == 0:
            time.sleep(2 * self.round_seconds)

    def _say_who_failed(self) -> None:
        if self.place.rank == 0:  # a user reads its log first; thousands of ranks need not repeat it
            warn(f"{self.board.read([FAILED])[0]}\nit failed first; therefore all ranks end")

    def _look(self) -> None:
        """Name the ranks that hang, if there are any, once every rank has written a message."""
        news, now = self._news(), self.clock()
        silent, late = [0.0], []
        for rank, each in enumerate(news):
            if each.number != self._heard[rank][0]:
                self._heard[rank] = (each.number, now)
            unheard = now - self._heard[rank][1]
            if not each.is_over:
                silent.append(each.silent + unheard)
                if unheard > self.patience.of_a_step or silent[-1] > self.patience.limit(each.phase):
                    late.append(rank)
        hung = self.find(late)
        if hung is None:
            return
        named = [news[rank] for rank in hung[0]]
        if self.board.write_first(NAMED, json.dumps([asdict(replace(each, stack="")) for each in named])):
            error = hanging(*hung, max(silent), self.patience.limit(named[0].phase))
            self.tell(Failure(self._of_all(error.rank, error.report), named[0].at, named[0].host))

    def stacks(self) -> tuple[dict[int, str], list[int]]:
        before = self._news()
        self.board.write(TELL_STACKS, "")
        self.write()
        deadline = time.monotonic() + STACK_SECONDS + 2 * self.round_seconds
        news = self._news()
        while time.monotonic() < deadline and not all(each.stack or each.is_over for each in news):
            time.sleep(0.02)
            news = self._news()
        running = {rank: each for rank, each in enumerate(news) if not each.is_over}
        mute = [rank for rank, each in running.items() if each.number == before[rank].number]
        return {rank: each.stack for rank, each in running.items()}, mute

    def _who_was_lost(self, failure: Failure) -> Failure:
        """Return the end of the rank that this one lost, if it can be found, or else this rank's own failure.

        Of all ranks that lost one, the first looks through all messages; the others give it the time.
        """
        gone, why, before = self._gone(), GONE, self._news()
        if not gone and before:
            looks = self.board.write_first(LOOKS, self._names[self.place.rank])
            deadline = time.monotonic() + (2 if looks else 3) * self.round_seconds
            while time.monotonic() < deadline and not self.board.has(FAILED):
                time.sleep(0.05)
            if looks and not self.board.has(FAILED):
                now = enumerate(self._news())
                gone, why = {r: each for r, each in now if each == before[r] and not each.is_over}, LEFT
        return self._without_a_word(gone, why) if gone else failure

    def _gone(self) -> dict[int, News]:
        """Return the messages of ranks of this host, started with this one, whose processes died without a word."""
        names = [self._names[rank] for rank in self._siblings]
        if not self.board.has(*names):
            return {}
        news = zip(self._siblings, map(read_news, self.board.read(names)), strict=True)
        return {rank: each for rank, each in news if each.is_here and not each.is_over and is_gone(each.pid)}

    def _without_a_word(self, gone: Mapping[int, News], why: str) -> Failure:
        (first, news), *others = gone.items()
        report = why + (f" (with ranks {listed([rank for rank, _ in others])})" if others else "")
        return Failure(self._of_all(first, report), news.at, news.host, host_lost=why == LEFT)

    def _of_all(self, rank: int, report: str) -> RankFailed:
        return RankFailed(rank, dict.fromkeys(range(self.place.world_size)), report)

    def _news(self) -> list[News]:
        """Return the messages of all ranks; empty until every rank has written one."""
        return list(map(read_news, self.board.read(self._names))) if self.board.has(*self._names) else []


@contextmanager
def keeping_watch(
    place: Place, heartbeats: Heartbeats, config: Supervision, tell: Callable[[Failure], None]
) -> Iterator[Callable[[Failure], Failure | None]]:
    """Supervise this rank inside this context: when a rank is named or has failed, this process exits at once with
    code 1. Yields a function that reports a failure of this rank and returns the cause as far as it is known: this
    failure, or that the rank which it lost is gone; None if another rank has reported it.

    A store that does not answer ends the supervision, not the training: collectives still have their timeout.
    """
    over, left = threading.Event(), threading.Event()
    failures, causes = list[Failure](), list[Failure | None]()

    def watch() -> None:
        with contextlib.suppress(RuntimeError):
            board = Board(config.timeout_seconds, config.stall_seconds)
            neighbours = Neighbours(place, heartbeats, config, tell, board)
            while not over.wait(neighbours.round_seconds):
                named = neighbours.turn()
                if named is not None:
                    end_siblings(named)
                    neighbours.keep_board()
                    os._exit(1)
            neighbours.write(is_over=True)
            for failure in failures:
                causes.append(neighbours.fail(failure))
                neighbours.keep_board()
        left.set()

    def cause_of(failure: Failure) -> Failure | None:
        failures.append(failure)
        over.set()
        left.wait(STACK_SECONDS + KEPT_SECONDS * ((place.rank == 0) + 2 * failure.lost_another))
        return causes[0] if causes else first_host_gone(place, failure)

    if place.world_size > 1:
        threading.Thread(target=watch, daemon=True, name="neighbours").start()
    else:
        left.set()
    try:
        yield cause_of
    finally:
        over.set()
        left.wait(KEPT_SECONDS)  # for its last message: without it, others would think that it was killed


def first_host_gone(place: Place, failure: Failure) -> Failure | None:
    """Return the cause of a failure that the board does not explain: rank 0, if its host does not answer any more, or
    else the failure itself. One rank of each host reports it; the others return None."""
    waited = failure.lost_another or TIMED_OUT in str(failure.error)
    if not waited or place.rank < place.local_ranks:
        return failure
    host, port, _ = meeting_point()
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), timeout=KNOCKING_SECONDS).close()
        time.sleep(ENDING_SECONDS)
        socket.create_connection((host, port), timeout=KNOCKING_SECONDS).close()
        return failure
    if place.local_rank:
        return None
    error = RankFailed(0, dict.fromkeys(range(place.world_size)), f"{FIRST_GONE} (seen by rank {place.rank})")
    return Failure(error, failure.at, host, host_lost=True)


def end_siblings(named: list[News]) -> None:
    """Kill the named ranks that this rank's own launcher started: a stopped process handles no milder signal."""
    for news in named:
        if news.is_here and news.pid != os.getpid() and parent_of(news.pid) == news.launcher:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(news.pid, signal.SIGKILL)


def read_news(text: str) -> News:
    return News(**json.loads(text))


def is_gone(pid: int) -> bool:
    """Whether a process has ended, even if its launcher has not yet noticed."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return stat_of(pid)[:1] in (["Z"], ["X"])


def parent_of(pid: int) -> int | None:
    """Return the parent of a process, or None if the system does not tell."""
    stat = stat_of(pid)
    return int(stat[1]) if stat else None


def stack_of_main_thread() -> str:
    """Return the main thread's innermost frames, the innermost first, as faulthandler writes them."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines: list[str] = []
    while frame is not None and len(lines) < FRAMES_SHOWN:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines)
