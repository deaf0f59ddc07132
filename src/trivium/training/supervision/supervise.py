"""Supervises the ranks of a job on this machine: passes signals on, finds ranks that hang, restarts failed jobs."""

import importlib
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trivium.checkpoint.format import published, step_of
from trivium.checkpoint.save import recover
from trivium.comms.launch import Place, RankFailed, Ranks, start_ranks
from trivium.errors import NOT_WORTH_REPEATING, Preempted, TriviumError, error_of
from trivium.plan.plan import Plan
from trivium.progress import Progress
from trivium.training.loop import CHECKPOINTS, TrainingJob
from trivium.training.metrics import EVENTS, METRICS, append, last_step, warn
from trivium.training.rank import observer_classes, train_rank
from trivium.training.supervision.preemption import EndedAtOnce, Requests, held_back
from trivium.training.supervision.pulse import Beat, Post, Pulse
from trivium.training.supervision.watchdog import Watchdog

Watch = Callable[[Ranks, int], None]  # called while ranks run, with the last step they finished

LONGEST_PAUSE_SECONDS = 60.0
# Parts of errors by which a rank reports that another rank is gone: over host memory, gloo and NCCL.
LOST = ("has closed its connection", "Connection closed by peer", "Connection reset by peer", "remote process exited")


@dataclass
class Supervisor:
    """What the launcher does while the ranks of `job` run. requests: the signals that it received."""

    job: TrainingJob
    requests: Requests
    progress: Progress
    watch: Watch

    def see_through(self, after_failure: Sequence[Plan]) -> Plan:
        """Run the job to its end, restarting it as often as its config says; returns the plan it ended under.

        Restarts are counted from the newest checkpoint: a newer one renews them. The n-th restart uses the n-th plan of
        `after_failure` if there is one. Raises Preempted if the job was asked to end, and otherwise its last failure.
        """
        plan, restarts, before = self.job.plan, 0, None
        plans, saved = iter(after_failure), self._steps_saved()
        while True:
            pulse = Pulse(plan.layout.world_size)
            try:
                self._attempt(replace(self.job, plan=plan), pulse)
                return plan
            except RankFailed as caught:
                if caught.exits.get(caught.rank) == Preempted.exit_code:
                    raise self.requests.preempted(caught.cause) from None
                at = pulse.of(caught.rank)
                failure = located(caught, at)
                note_failure(self.job.out, failure, at, socket.gethostname())
                self._refuse_to_restart(failure)
                if before == at.step:
                    raise as_the_rank_said(failure, "\nstopped: it failed there twice, and would again") from None
                if self._steps_saved() > saved:
                    restarts, saved = 0, self._steps_saved()
                if restarts >= self.job.training.restarts:
                    raise as_the_rank_said(failure) from None
                before = at.step
            plan = next(plans, plan)
            restarts += 1
            self._pause(failure, restarts)
            recover(self.job.out / CHECKPOINTS)

    def _steps_saved(self) -> int:
        """Return the step of the newest checkpoint, or -1."""
        return max((step_of(path.name) or 0 for path in published(self.job.out / CHECKPOINTS)), default=-1)

    def _attempt(self, job: TrainingJob, pulse: Pulse) -> None:
        _import_for_ranks(job.plan)
        with held_back():
            ranks = start_ranks(_rank, job.plan.layout.world_size, job, pulse)
        watchdog = Watchdog(pulse, ranks.pids, job.training.supervision)
        seen = -1

        def look() -> None:
            nonlocal seen
            step = last_step(job.out / METRICS)
            if step != seen:
                seen = step
                self.progress(step, job.training.steps, "")
            self.watch(ranks, step)

        def look_after() -> None:
            look()
            self._obey(pulse)
            watchdog.look()

        ranks.wait(watch=look_after)
        look()

    def _obey(self, pulse: Pulse | None) -> None:
        """Pass a request to end on to the ranks, if there are any, and end if they do not follow it in time."""
        asked = self.requests.asked
        if not asked:
            return
        if self.requests.again:
            raise EndedAtOnce(self.requests.again)
        if pulse is None:
            raise self.requests.preempted(f"received {asked} {self._resumes()}")
        if self.requests.by_user and any(beat.step == 0 for beat in pulse.beats()):
            raise self.requests.preempted(f"received {asked} before the first step; nothing is lost")
        if not pulse.ends:
            warn(
                f"received {asked}: saving after this step, then exiting; a second signal exits at once without saving"
            )
        pulse.ask_to_end()
        patience = self.job.training.supervision.preemption_seconds
        if time.monotonic() - self.requests.since > patience:
            raise self.requests.preempted(
                f"received {asked}, and the ranks did not save within training.supervision.preemption_seconds "
                f"({patience:g}); ended {self._resumes()}"
            )

    def _refuse_to_restart(self, failure: RankFailed) -> None:
        """Raise the error of a failure after which no restart is of use."""
        if failure.exits.get(failure.rank) in NOT_WORTH_REPEATING:
            raise as_the_rank_said(failure)
        if self.requests.again:
            raise EndedAtOnce(self.requests.again)
        if self.requests.asked:
            had = f"it had received {self.requests.asked} {self._resumes()}"
            raise self.requests.preempted(f"{failure}\n{had}")

    def _pause(self, failure: RankFailed, restarts: int) -> None:
        """Report the failure, and wait before the n-th restart, twice as long as before the previous one."""
        first = self.job.training.supervision.restart_seconds
        seconds = min(first * 2 ** (restarts - 1), max(first, LONGEST_PAUSE_SECONDS))
        warn(str(failure))
        allowed = self.job.training.restarts
        warn(f"restart {restarts} of {allowed} in {seconds:g} s, from the last checkpoint; a newer one renews them")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._obey(None)
            time.sleep(min(0.02, seconds))
        self._obey(None)

    def _resumes(self) -> str:
        return "before it saved again; run the same command again to resume from the last checkpoint"


def note_failure(out: Path, failure: RankFailed, at: Beat, host: str) -> None:
    """Append a failure to the events of the run. A rank that lost a connection is not the one that failed: then no host
    is named, because a job file would exclude it."""
    lost = any(words in str(failure) for words in LOST)
    event = {"event": "rank failed", "rank": failure.rank, "cause": str(failure)}
    event |= {} if lost else {"host": host}
    event["time"] = time.time()
    append(out / EVENTS, {**event, "step": last_step(out / METRICS), "in_step": at.step, "phase": at.phase})


def located(failure: RankFailed, at: Beat, host: str = "") -> RankFailed:
    """Return the same failure with the step, the phase and, of several hosts, the host."""
    doing = "" if at.phase == "step" else f", {at.phase}"
    where = f" on {host}" if host else ""
    where += f" in step {at.step}{doing}" if at.step else doing
    return RankFailed(failure.rank, failure.exits, failure.report, where)


def as_the_rank_said(failure: RankFailed, more: str = "") -> TriviumError:
    """Return an error of the class that the rank raised, so that the exit code tells what was wrong."""
    return error_of(failure.exits.get(failure.rank), f"{failure}{more}")


def _import_for_ranks(plan: Plan) -> None:
    """Import what ranks import in their first step: ranks that are forked after that share its memory."""
    observer_classes()
    if plan.layout.pipeline > 1:
        importlib.import_module("torch.fx.experimental.symbolic_shapes")  # a backward from a given gradient
    if plan.recompute.mode != "none":
        importlib.import_module("torch._dynamo")


def _rank(place: Place, job: TrainingJob, pulse: Pulse) -> None:
    pulse.tell_stacks(place.rank)
    train_rank(place, job, post=Post(place.rank, pulse))
