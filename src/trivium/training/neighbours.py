"""The watch that ranks keep over one another where no launcher of ours looks after them: under torchrun or srun.

A thread of each rank leaves signs of life on the board; the first and the last rank, which seldom share a host, read
them. Whichever finds a rank that hangs asks all for their stacks, names it, and every rank ends. So they do when one
has failed: it says so itself, and the others need not find out by a collective that never ends.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from trivium.parallel.board import Board
from trivium.parallel.launch import Place, RankFailed
from trivium.training.config import Supervision
from trivium.training.metrics import warn
from trivium.training.pulse import PHASES, Beat, Pulse
from trivium.training.watchdog import (
    ABSENT_SECONDS,
    FRAMES_SHOWN,
    STACK_SECONDS,
    Patience,
    blame,
    hanging,
    stat_of,
)

Tell = Callable[[RankFailed, Beat, str], None]  # with the host

ROUNDS_A_LIMIT = 10  # signs of life in the time after which a rank counts as hanging
LONGEST_ROUND_SECONDS = 3.0
KEPT_SECONDS = 2 * LONGEST_ROUND_SECONDS  # that a board stays after the last word on it
SILENCE = "it does not answer at all: stopped (SIGSTOP or a debugger), or its host is gone"
TELL_STACKS, NAMED, FAILED = "tell stacks", "named", "failed"


@dataclass(frozen=True)
class News:
    """What a rank leaves on the board. number: of its messages; silent: seconds since its training's last sign of
    life, by its own clock; is_over: it ends, and says nothing any more; stack: innermost frames, once asked."""

    number: int
    step: int
    phase: str
    silent: float
    host: str
    pid: int
    launcher: int
    is_over: bool = False
    stack: str = ""


class Neighbours:
    """One rank's part in the watch. tell: called by the one rank that names another that hangs."""

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
        now = clock()
        self._number, self._turned, self._forgiven, self._patient_until = 0, now, now, now
        self._heard = [
            (0, now)
        ] * place.world_size  # of each rank, the last message's number and when it was new

    @property
    def round_seconds(self) -> float:
        """Between two signs of life."""
        return min(self.patience.of_a_step / ROUNDS_A_LIMIT, LONGEST_ROUND_SECONDS)

    def turn(self) -> list[News] | None:
        """Leave a sign of life and look for others'. While all is well returns None; otherwise every rank ends, and
        this returns the news of ranks that hang and were named."""
        now = self._clock()
        if now - self._turned > max(ABSENT_SECONDS, 2 * self.round_seconds):
            self._forgiven = now  # this process was itself stopped, and its neighbours perhaps with it
            self._heard = [(number, now) for number, _ in self._heard]
        self._turned = now
        self.patience.learn(self.pulse.of(0))
        self.leave()
        if self.watches and not self.board.has(NAMED) and self.board.has(*self._ranks):
            self._look(now)
        if self.board.has(NAMED):
            return [News(**each) for each in json.loads(self.board.read([NAMED])[0])]
        if self.board.has(FAILED):
            self._say_who_failed()
            return []
        return None

    def fail(self, told: str) -> bool:
        """Say that this rank has failed, and how; whether it is the first to, and so the cause."""
        is_first = self.board.write_first(FAILED, told)
        if not is_first:
            self._say_who_failed()
        return is_first

    def keep_board(self) -> None:
        """The first rank, whose process may be where the board is, ends only when all have had their turn."""
        if self.place.rank == 0:
            time.sleep(2 * self.round_seconds)

    def _say_who_failed(self) -> None:
        """In the first rank's log, which a user reads first; thousands need not repeat it."""
        if self.place.rank == 0:
            warn(f"{self.board.read([FAILED])[0]}\nit failed first; therefore all ranks end")

    def leave(self, *, is_over: bool = False) -> None:
        """Write this rank's news."""
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
        silent = {
            rank: each.silent + self._unheard(rank, now) for rank, each in enumerate(news) if not each.is_over
        }
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
            phase = next(known for known in PHASES if known == first.phase)
            self.tell(failure, Beat(first.step, phase, 0.0, 0.0), first.host)

    def _news(self) -> list[News]:
        return [News(**json.loads(text)) for text in self.board.read(self._ranks)]


@contextmanager
def keeping_watch(
    place: Place, pulse: Pulse, config: Supervision, tell: Tell
) -> Iterator[Callable[[str], bool]]:
    """Inside, this rank takes part in the watch; when a rank is named or has failed, this process ends at once with
    code 1. What is yielded says that this rank has failed, and returns whether it is the first to, as far as is known.

    A store that does not answer ends the watch, not the training: collectives still have their timeout.
    """
    over, left, failed, others = threading.Event(), threading.Event(), list[str](), list[str]()

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
            for told in failed:
                others.extend([] if neighbours.fail(told) else [told])
                neighbours.keep_board()
        left.set()

    def is_first_to_fail(told: str) -> bool:
        failed.append(told)
        over.set()
        left.wait(STACK_SECONDS + (KEPT_SECONDS if place.rank == 0 else 0.0))
        return not others

    if place.world_size > 1:
        threading.Thread(target=watch, daemon=True, name="neighbours").start()
    else:
        left.set()
    try:
        yield is_first_to_fail
    finally:
        over.set()
        left.wait(STACK_SECONDS)


def end_siblings(named: list[News]) -> None:
    """Kill those of the named ranks that this rank's own launcher started: a stopped process hears nothing milder."""
    for news in named:
        is_here = news.host == socket.gethostname() and news.launcher == os.getppid()
        if is_here and news.pid != os.getpid() and parent_of(news.pid) == news.launcher:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(news.pid, signal.SIGKILL)


def parent_of(pid: int) -> int | None:
    """The parent of a process; where the system does not say, nothing."""
    stat = stat_of(pid)
    return int(stat[1]) if stat else None


def stack_of_main_thread() -> str:
    """Its innermost frames, the innermost first, as faulthandler writes them."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines: list[str] = []
    while frame is not None and len(lines) < FRAMES_SHOWN:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines)
