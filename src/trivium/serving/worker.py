"""One thread asks the model; requests wait for it in a queue of limited length."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from trivium.serving.config import ServeConfig
from trivium.serving.write import Draft, Token, read_prompt
from trivium.serving.writer import Writer


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

    @property
    def late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() > self.deadline

    @property
    def goes_on(self) -> bool:
        """Whether anybody still waits for it."""
        return not self.cancelled.is_set() and not self.late


@dataclass(frozen=True)
class Event:
    """What happened to a job: a token of text `number`, or its end, for which `kind` says how."""

    kind: Literal["token", "done", "late", "failed"]
    number: int = 0
    token: Token | None = None


class Worker:
    """Jobs that wait together are written together."""

    def __init__(self, writer: Writer, limits: ServeConfig) -> None:
        self.writer, self.limits = writer, limits
        self._waiting: queue.Queue[Job | None] = queue.Queue(limits.queue)
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
        while True:
            job = self._waiting.get()
            if job is None:
                return
            jobs, ends = self._gathered(job)
            try:
                self._work([j for j in jobs if j.goes_on])
            except Exception:  # one job's failure must not end the server
                for job in jobs:
                    job.tell(Event("failed"))
            else:
                for job in jobs:
                    job.tell(Event("late" if job.late else "done"))
            if ends:
                return

    def _gathered(self, first: Job) -> tuple[list[Job], bool]:
        """This job and others that wait, as many as are written together; and whether the end was asked for."""
        jobs, texts = [first], len(first.drafts)
        while texts < self.limits.together:
            try:
                more = self._waiting.get_nowait()
            except queue.Empty:
                break
            if more is None:
                return jobs, True
            jobs.append(more)
            texts += len(more.drafts)
        return jobs, False

    def _work(self, jobs: list[Job]) -> None:
        for job in jobs:
            for ids in job.read:
                if job.goes_on:
                    job.echoed.append(read_prompt(self.writer.model, ids, job.alternatives))
        self.writer.write_drafts([d for job in jobs if job.goes_on for d in job.drafts])
