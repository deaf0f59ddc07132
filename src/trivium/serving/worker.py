"""A worker thread runs the model. Requests wait for it in a bounded queue."""

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from trivium.model.generate import Batch
from trivium.serving.config import ServeConfig
from trivium.serving.ranks import LeadingRows, OutOfStep
from trivium.serving.writer import Draft, Token, Writer, read_prompt


@dataclass
class Job:
    """A request in progress. `report` is called in the worker's thread.

    read: prompts whose own log-probabilities are requested, with `alternatives`; the results are put into
    `echoed`.
    """

    drafts: list[Draft]
    report: Callable[["Event"], None]
    deadline: float  # of time.monotonic
    read: list[list[int]] = field(default_factory=list)
    alternatives: int = 0
    echoed: list[list[Token]] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    ended: bool = False  # whether the end has been reported

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self.deadline

    @property
    def goes_on(self) -> bool:
        """Whether the client still waits for the result."""
        return not self.cancelled.is_set() and not self.late

    @property
    def unfinished(self) -> list[Draft]:
        """The drafts that are not complete."""
        return [d for d in self.drafts if d.finish is None]

    def settle(self) -> None:
        """Report the end once, if the job is complete or nobody waits for it."""
        complete = len(self.echoed) == len(self.read) and all(d.finish not in (None, "cancelled") for d in self.drafts)
        if complete or not self.goes_on:
            self.end("done" if complete else "late")

    def end(self, kind: Literal["done", "late", "failed"]) -> None:
        """Report the end, once."""
        if not self.ended:
            self.ended = True
            self.report(Event(kind))


@dataclass(frozen=True)
class Event:
    """An event of a job: a token of text `number`, or the end as described by `kind`."""

    kind: Literal["token", "done", "late", "failed"]
    number: int = 0
    token: Token | None = None


class Worker:
    """Generates jobs in one batch. New jobs join between two tokens, and complete texts leave it."""

    def __init__(
        self,
        writer: Writer,
        limits: ServeConfig,
        rows: LeadingRows | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """rows: of a model on several ranks. on_failure: called when these can no longer work together."""
        self.writer, self.limits = writer, limits
        self.rows = rows or LeadingRows(writer.model)
        self.error: OutOfStep | None = None
        self._on_failure = on_failure
        self._batch = Batch(self.rows, writer.choose)
        self._waiting: queue.Queue[Job | None] = queue.Queue(limits.queue)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> bool:
        """Append a job to the queue. Returns False if the queue is full."""
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            return False
        if self.error is not None:  # nobody reads the queue
            job.end("failed")
        return True

    def close(self) -> None:
        """Finish the queued jobs, then stop the thread. Raises OutOfStep if the ranks could not work together."""
        if self.error is None:
            self._waiting.put(None)
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        jobs: list[Job] = []
        try:
            while jobs or not self._closing:
                joining = self._joining(jobs)
                jobs += joining
                self._advance(jobs, joining)
                jobs = [job for job in jobs if not job.ended]
            self.rows.end()
        except OutOfStep as error:
            self.error = error
            while not self._waiting.empty():
                jobs += filter(None, [self._waiting.get()])
            for job in jobs:
                job.end("failed")
            self._on_failure()

    def _joining(self, jobs: list[Job]) -> list[Job]:
        """Take as many queued jobs as fit into the batch. Wait for the first one only if there is no other work."""
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

    def _advance(self, jobs: list[Job], joining: list[Job]) -> None:
        """Add a token to each text of the jobs, after the prompts of those that join have been read.

        If that fails, the jobs are completed one by one, so that only the faulty job fails.
        """
        try:
            for job in joining:
                self._read(job)
            self._batch.join([draft for job in joining if job.goes_on for draft in job.unfinished])
            if self._batch.texts:
                self._batch.step()
        except OutOfStep:
            raise
        except Exception:  # a failing job must not stop the server
            self._batch.clear()
            if len(jobs) == 1:
                traceback.print_exc(file=sys.stderr)  # log the cause for the server's operator
                jobs[0].end("failed")
                return
            for job in jobs:
                joining = [job]
                while not job.ended:
                    self._advance([job], joining)
                    joining = []
        for job in jobs:
            job.settle()

    def _read(self, job: Job) -> None:
        """Read the prompts whose log-probabilities are requested."""
        for ids in job.read[len(job.echoed) :]:
            if job.goes_on:
                job.echoed.append(read_prompt(self.rows, ids, job.alternatives))
