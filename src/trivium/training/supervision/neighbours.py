"""Supervision of ranks by one another, for launchers that do not supervise them: torchrun and srun.

A thread of each rank writes heartbeats to the board; the first and the last rank, which seldom share a host, read
them. The one that finds a rank that hangs asks all ranks for their stacks and names it, and every rank ends. A rank
that fails writes so itself, so that the others need not learn it from a collective that never ends. A rank that was
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
from typing import NamedTuple

from trivium.comms.board import Board
from trivium.comms.launch import Place, RankFailed, meeting_point
from trivium.training.config import Supervision
from trivium.training.metrics import warn
from trivium.training.supervision.pulse import PHASES, Beat, Pulse
from trivium.training.supervision.supervise import LOST, located
from trivium.training.supervision.watchdog import (
    ABSENT_SECONDS,
    FRAMES_SHOWN,
    STACK_SECONDS,
    Patience,
    blame,
    hanging,
    stat_of,
)
from trivium.units import listed

ROUNDS_A_LIMIT = 10  # heartbeats in the time after which a rank counts as hanging
LONGEST_ROUND_SECONDS = 3.0
KEPT_SECONDS = 2 * LONGEST_ROUND_SECONDS  # for which the board stays after the last message
SILENCE = "it does not answer at all: stopped (SIGSTOP or a debugger), or its host is gone"
GONE = (
    "its process is gone without a word: killed (by the kernel for lack of memory, perhaps), or crashed; the system's "
    "log tells"
)
LEFT = "it says nothing any more: killed (by the kernel for lack of memory, perhaps), crashed, or its host is gone"
FIRST_GONE = (
    "its host does not answer any more, which has the store at which all ranks meet: it is gone, or cut off; ranks on "
    "other hosts end because of that"
)
TIMED_OUT = "Timed out waiting"  # gloo's error about a peer that sends nothing, as after a cut cable
KNOCKING_SECONDS = 5.0  # that the first host may take to answer or refuse
TELL_STACKS, NAMED, FAILED, LOOKS = "tell stacks", "named", "failed", "looks"


@dataclass(frozen=True)
class News:
    """A message of a rank on the board. number: of its messages; silent: seconds since its training's last heartbeat,
    by its own clock; is_over: it ends, and writes nothing more; stack: innermost frames, once requested."""

    number: int
    step: int
    phase: str
    silent: float
    host: str
    pid: int
    launcher: int
    is_over: bool = False
    stack: str = ""


class Failure(NamedTuple):
    """The failure of a rank: its error, where in the training, and on which host."""

    error: RankFailed
    at: Beat
    host: str

    @property
    def located(self) -> RankFailed:
        """The error with the place where it occurred."""
        return located(*self)

    @property
    def lost_another(self) -> bool:
        """Whether it failed because another rank is gone."""
        return any(words in str(self.error) for words in LOST)


Tell = Callable[[Failure], None]


class Neighbours:
    """One rank's part in the supervision. tell: called by the one rank that names another that hangs or is gone."""

    def __init__(
        self,
        place: Place,
        pulse: Pulse,
        config: Supervision,
        tell: Tell,
        board: Board,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place, self.pulse, self.tell, self.board, self._clock = place, pulse, tell, board, clock
        self.patience = Patience(config)
        self.watches = place.rank in (0, place.world_size - 1)
        self._ranks = [f"rank {rank}" for rank in range(place.world_size)]
        first = place.rank - place.local_rank
        self._siblings = range(max(0, first), min(first + place.local_ranks, place.world_size))
        self._missed = set[int]()  # siblings that were gone the last time
        now = clock()
        self._number, self._turned, self._forgiven, self._patient_until = 0, now, now, now
        self._heard = [(0, now)] * place.world_size  # of each rank, the last message's number and when it was new

    @property
    def round_seconds(self) -> float:
        """Seconds between two heartbeats."""
        return min(self.patience.of_a_step / ROUNDS_A_LIMIT, LONGEST_ROUND_SECONDS)

    def turn(self) -> list[News] | None:
        """Write a heartbeat and read those of others. Returns None while all is well. Otherwise every rank ends, and
        this returns the messages of the ranks that hang and were named."""
        now = self._clock()
        if now - self._turned > max(ABSENT_SECONDS, 2 * self.round_seconds):
            self._forgiven = now  # this process was itself stopped, and its neighbours perhaps with it
            self._heard = [(number, now) for number, _ in self._heard]
        self._turned = now
        self.patience.learn(self.pulse.of(0))
        self.leave()
        if self.watches and not self.board.has(NAMED) and self.board.has(*self._ranks):
            self._look(now)
        gone = self._gone()  # before the board is asked: ranks leave without a word once it names one
        if self.board.has(NAMED):
            return [News(**each) for each in json.loads(self.board.read([NAMED])[0])]
        if self.board.has(FAILED):
            self._say_who_failed()
            return []
        twice, self._missed = self._missed.intersection(gone), set(gone)  # its last word may be on its way
        if twice:
            cause = self.fail(self._without_a_word({rank: gone[rank] for rank in sorted(twice)}, GONE))
            if cause is not None:
                self.tell(cause)
            return []
        return None

    def fail(self, failure: Failure) -> Failure | None:
        """Report that this rank has failed, or which rank it lost. Returns what was reported, or None if another rank
        had failed before and is the cause."""
        cause = self._who_was_lost(failure) if failure.lost_another else failure
        if self.board.write_first(FAILED, str(cause.located)):
            return cause
        self._say_who_failed()
        return None

    def keep_board(self) -> None:
        """Keep the first rank, whose process may own the board, until all others have read it."""
        if self.place.rank == 0:
            time.sleep(2 * self.round_seconds)

    def _say_who_failed(self) -> None:
        """Warn on the first rank, whose log a user reads first; thousands need not repeat it."""
        if self.place.rank == 0:
            warn(f"{self.board.read([FAILED])[0]}\nit failed first; therefore all ranks end")

    def leave(self, *, is_over: bool = False) -> None:
        """Write this rank's message."""
        beat, now = self.pulse.of(0), self._clock()
        self._number += 1
        stack = stack_of_main_thread() if self.board.has(TELL_STACKS) else ""
        silent = now - max(beat.at, self._forgiven)
        where = (socket.gethostname(), os.getpid(), os.getppid())
        news = News(self._number, beat.step, beat.phase, silent, *where, is_over, stack)
        self.board.write(self._ranks[self.place.rank], json.dumps(asdict(news)))

    def _look(self, now: float) -> None:
        news = self._news()
        for rank, each in enumerate(news):
            if each.number != self._heard[rank][0]:
                self._heard[rank] = (each.number, now)
        silent = {rank: each.silent + self._unheard(rank, now) for rank, each in enumerate(news) if not each.is_over}
        late = {rank for rank, s in silent.items() if self._is_late(rank, news[rank], s, now)}
        if late and now > self._patient_until:
            self._name(late, max(silent.values()))

    def _is_late(self, rank: int, news: News, silent: float, now: float) -> bool:
        unheard = self._unheard(rank, now) > self.patience.of_a_step
        return unheard or silent > self.patience.limit(news.phase)

    def _unheard(self, rank: int, now: float) -> float:
        return now - self._heard[rank][1]

    def _name(self, late: set[int], seconds: float) -> None:
        before = self._news()
        self.board.write(TELL_STACKS, "")
        self.leave()
        deadline = time.monotonic() + STACK_SECONDS + 2 * self.round_seconds
        news = self._news()
        while time.monotonic() < deadline and not all(each.stack or each.is_over for each in news):
            time.sleep(0.02)
            news = self._news()
        there = {rank: each for rank, each in enumerate(news) if not each.is_over}
        mute = [rank for rank, each in there.items() if each.number == before[rank].number]
        stacks = {rank: each.stack for rank, each in there.items()}
        guilty, how = blame(stacks, mute, SILENCE)
        if late.isdisjoint(guilty):  # who is late waits for one that starts or saves, and still may
            self._patient_until = self._clock() + self.patience.of_a_step
            return
        named = [asdict(replace(news[rank], stack="")) for rank in guilty]
        if self.board.write_first(NAMED, json.dumps(named)):
            first = news[guilty[0]]
            failure = hanging(guilty, how, stacks, seconds, self.patience.limit(first.phase))
            failure = RankFailed(failure.rank, dict.fromkeys(range(self.place.world_size)), failure.report)
            self.tell(Failure(failure, beat_of(first), first.host))

    def _who_was_lost(self, failure: Failure) -> Failure:
        """The end of the rank that this one lost, where it can be told; otherwise this rank's own failure.

        Of all ranks that lost one, the first to ask looks through all news; the others leave it the time.
        """
        gone, why, before = self._gone(), GONE, self._news()
        if not gone and before:
            looks = self.board.write_first(LOOKS, self._ranks[self.place.rank])
            deadline = time.monotonic() + (2 if looks else 3) * self.round_seconds
            while time.monotonic() < deadline and not self.board.has(FAILED):
                time.sleep(0.05)
            if looks and not self.board.has(FAILED):
                now = enumerate(self._news())
                gone, why = {r: each for r, each in now if each == before[r] and not each.is_over}, LEFT
        return self._without_a_word(gone, why) if gone else failure

    def _gone(self) -> dict[int, News]:
        """The news of ranks of this host, started with this one, whose processes are gone without a word."""
        names = [self._ranks[rank] for rank in self._siblings]
        if not self.board.has(*names):
            return {}
        news = zip(self._siblings, map(read_news, self.board.read(names)), strict=True)
        return {rank: each for rank, each in news if is_here(each) and not each.is_over and is_gone(each.pid)}

    def _without_a_word(self, gone: Mapping[int, News], why: str) -> Failure:
        (first, news), *others = gone.items()
        report = why + (f" (with ranks {listed([rank for rank, _ in others])})" if others else "")
        error = RankFailed(first, dict.fromkeys(range(self.place.world_size)), report)
        return Failure(error, beat_of(news), news.host)

    def _news(self) -> list[News]:
        """Of all ranks, once each has said something."""
        return list(map(read_news, self.board.read(self._ranks))) if self.board.has(*self._ranks) else []


@contextmanager
def keeping_watch(
    place: Place, pulse: Pulse, config: Supervision, tell: Tell
) -> Iterator[Callable[[Failure], Failure | None]]:
    """Inside, this rank takes part in the supervision; when a rank is named or has failed, this process exits at once
    with code 1. Yields a function that reports a failure of this rank and returns the cause as far as it is known: this
    failure, or that the rank which it lost is gone; None if another rank has reported it.

    A store that does not answer ends the supervision, not the training: collectives still have their timeout.
    """
    over, left = threading.Event(), threading.Event()
    failures, causes = list[Failure](), list[Failure | None]()

    def watch() -> None:
        with contextlib.suppress(RuntimeError):
            board = Board(config.timeout_seconds, config.stall_seconds)
            neighbours = Neighbours(place, pulse, config, tell, board)
            while not over.wait(neighbours.round_seconds):
                named = neighbours.turn()
                if named is not None:
                    end_siblings(named)
                    neighbours.keep_board()
                    os._exit(1)
            neighbours.leave(is_over=True)
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
        left.wait(KEPT_SECONDS)  # its last word: without it, others would think that it was killed


def first_host_gone(place: Place, failure: Failure) -> Failure | None:
    """The cause of a failure of which the board does not tell: rank 0, where its host does not answer any more.

    One rank of each host says so (None on the others). Otherwise it is the failure itself.
    """
    waited = failure.lost_another or TIMED_OUT in str(failure.error)
    if not waited or place.rank < place.local_ranks:
        return failure
    host, port, _ = meeting_point()
    if answers(host, port):
        return failure
    if place.local_rank:
        return None
    error = RankFailed(0, dict.fromkeys(range(place.world_size)), f"{FIRST_GONE} (seen by rank {place.rank})")
    return Failure(error, failure.at, host)


def answers(host: str, port: int) -> bool:
    """Whether a process listens at this address."""
    try:
        socket.create_connection((host, port), timeout=KNOCKING_SECONDS).close()
    except OSError:
        return False
    return True


def end_siblings(named: list[News]) -> None:
    """Kill the named ranks that this rank's own launcher started: a stopped process handles no milder signal."""
    for news in named:
        if is_here(news) and news.pid != os.getpid() and parent_of(news.pid) == news.launcher:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(news.pid, signal.SIGKILL)


def read_news(text: str) -> News:
    """Parse a message of the board."""
    return News(**json.loads(text))


def beat_of(news: News) -> Beat:
    """Return where in the training a rank was, without times, which are those of another clock."""
    phase = next(known for known in PHASES if known == news.phase)
    return Beat(news.step, phase, 0.0, 0.0)


def is_here(news: News) -> bool:
    """Whether the launcher of this rank started that one too, on this host."""
    return news.host == socket.gethostname() and news.launcher == os.getppid()


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
