"""One thread asks the model; requests wait for it in a queue of limited length."""

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from trivium.serving.config import ServeConfig
from trivium.serving.write import Draft, Token, read_prompt
from trivium.serving.writer import Writer

# A text that joins others makes them be read anew: so many tokens are drawn between two such moments.
BETWEEN_JOINS = 16


@dataclass
class Job:
    """A request at work. `tell` is called from the worker's thread.

    read: prompts whose own log-probabilities are wanted, and how many alternatives; they are in `echoed` afterwards.
    """

    drafts: list[Draft]
    tell: Callable[["Event"], None]
    deadline: float  # of time.monotonic
    read: list[list[int]] = field(default_factory=list)
    alternatives: int = 0
    echoed: list[list[Token]] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    ended: bool = False  # that it ended has been told

    @property
    def late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() > self.deadline

    @property
    def goes_on(self) -> bool:
        """Whether anybody still waits for it."""
        return not self.cancelled.is_set() and not self.late

    @property
    def unfinished(self) -> list[Draft]:
        """Texts that are not complete."""
        return [d for d in self.drafts if d.finish is None]

    def settle(self) -> None:
        """Tell its end, once, when nothing is left to do: it is complete, or nobody waits for it."""
        complete = len(self.echoed) == len(self.read) and all(
            d.finish not in (None, "cancelled") for d in self.drafts
        )
        if complete or not self.goes_on:
            self.end("done" if complete else "late")

    def end(self, kind: Literal["done", "late", "failed"]) -> None:
        """Tell how it ended, once."""
        if not self.ended:
            self.ended = True
            self.tell(Event(kind))


@dataclass(frozen=True)
class Event:
    """What happened to a job: a token of text `number`, or its end, for which `kind` says how."""

    kind: Literal["token", "done", "late", "failed"]
    number: int = 0
    token: Token | None = None


class Worker:
    """Jobs are written side by side: one that comes later joins at a token, and one that is complete leaves at once."""

    def __init__(self, writer: Writer, limits: ServeConfig) -> None:
        self.writer, self.limits = writer, limits
        self._waiting: queue.Queue[Job | None] = queue.Queue(limits.queue)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> bool:
        """Put a job behind the others; False when too many wait already."""
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """End after the jobs that wait."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        jobs: list[Job] = []
        while jobs or not self._closing:
            jobs += self._joining(jobs)
            self._work(jobs)
            jobs = [job for job in jobs if not job.ended]

    def _joining(self, jobs: list[Job]) -> list[Job]:
        """Jobs that wait, as many as there is room for; with no other to work at, the first is waited for."""
        found: list[Job] = []
        while not self._closing and self._has_room([*jobs, *found]):
            try:
                job = self._waiting.get(block=not jobs and not found)
            except queue.Empty:
                break
            if job is None:
                self._closing = True
            elif job.goes_on:
                found.append(job)
            else:
                job.settle()
        return found

    def _has_room(self, jobs: list[Job]) -> bool:
        return sum(len(job.unfinished) for job in jobs) < self.limits.together

    def _work(self, jobs: list[Job]) -> None:
        """Write until all are complete, or another can join; what one of them breaks, it breaks alone."""
        try:
            for job in jobs:
                self._read(job)
            self._write(jobs)
        except Exception:  # one job's failure must not end the server
            if len(jobs) == 1:
                traceback.print_exc(file=sys.stderr)  # whoever runs the server is told why
                jobs[0].end("failed")
                return
            for job in jobs:
                self._work([job])

    def _read(self, job: Job) -> None:
        """The prompts that are to be told."""
        for ids in job.read[len(job.echoed) :]:
            if job.goes_on:
                job.echoed.append(read_prompt(self.writer.model, ids, job.alternatives))

    def _write(self, jobs: list[Job]) -> None:
        drafts = []
        for job in jobs:
            for draft in job.unfinished if job.goes_on else ():
                draft.ended, draft.rests = job.settle, self._rests(jobs, draft)
                drafts.append(draft)
        self.writer.write_drafts(drafts)
        for job in jobs:
            job.settle()

    def _rests(self, jobs: list[Job], draft: Draft) -> Callable[[], bool]:
        """Whether a text pauses so that a job that waits can join."""
        enough = len(draft.tokens) + BETWEEN_JOINS
        return lambda: len(draft.tokens) >= enough and not self._waiting.empty() and self._has_room(jobs)
