"""Runs a training job: checks it, runs and supervises its ranks or takes a place among them, writes the summary."""

import importlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trivium.checkpoint.format import published, read_manifest, step_of
from trivium.checkpoint.lease import Holder, holding
from trivium.checkpoint.save import recover
from trivium.comms.launch import Place, RankFailed, Ranks, end_with_launcher, start_ranks, torchrun_place
from trivium.comms.meeting import Unmet
from trivium.errors import NOT_WORTH_REPEATING, ConfigError, Preempted, TriviumError, error_of
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent
from trivium.provenance import write_json
from trivium.stores.folder import upload
from trivium.stores.lease import holding_store
from trivium.stores.remote import Remote
from trivium.training.loop import DEGREES, TrainingJob, dataset_of, identity_of
from trivium.training.metrics import METRICS, append_event, last_step, warn
from trivium.training.rank import observer_classes, train_rank
from trivium.training.rates import recipe_problems
from trivium.training.record import RECORDS, records_in, refuse_given
from trivium.training.supervision.heartbeats import Heartbeats, RankHeartbeat
from trivium.training.supervision.neighbours import keeping_watch
from trivium.training.supervision.preemption import EndedAtOnce, Requests, held_back, ignore_signals, listening
from trivium.training.supervision.watchdog import Failure, Watchdog
from trivium.untrusted import read_json

Watch = Callable[[Ranks, int], None]  # called while ranks run, with the last step that they finished
LONGEST_PAUSE_SECONDS = 60.0
RESUMES = "before it saved again; run the same command again to resume from the last checkpoint"


def start(
    job: TrainingJob,
    *,
    progress: Progress = silent,
    after_failure: Sequence[Plan] = (),
    then: tuple[int, Plan] | None = None,
    watch: Watch | None = None,
    predicted: Mapping[int, Mapping[str, int]] | None = None,
    lease: Holder | None = None,
) -> dict[str, Any]:
    """Train to the end and return the summary.

    Under torchrun this process is one of the ranks. Otherwise the ranks are forked here, and a job that loses one is
    restarted, up to `training.restarts` times from the same checkpoint; the n-th restart uses the n-th plan of
    `after_failure` if there is one. then: a step, and the plan under which training resumes after it; not under
    torchrun, whose ranks keep their number. predicted: bytes by rank and category, which the summary lists next to the
    measured ones. lease: of the run directory, if the caller has it. Raises Preempted if SIGTERM, SIGUSR1 or SIGINT, to
    this process or to a rank, ended the job; all ranks have then saved, if they had done a step.
    """
    job = replace(job, tokens=Path(job.tokens), out=Path(job.out))
    check(job)
    place = torchrun_place()
    if place is not None and place.rank != 0:
        _train_among_others(place, job)
        return {}
    with _alone(job, lease):
        if place is not None:
            _train_among_others(place, job)
            return summarise(job, predicted or {})
        # The launcher sees a second signal when it checks its ranks the next time.
        with listening(lambda number: None) as requests:
            for part in _parts(job, then):
                plan = Supervisor(part, requests, progress, watch or (lambda ranks, step: None)).run(after_failure)
            return summarise(replace(part, plan=plan), predicted or {})


def _parts(job: TrainingJob, then: tuple[int, Plan] | None) -> list[TrainingJob]:
    """Return what is left of a job, divided at the step after which it moves to another plan."""
    if then is None:
        return [job]
    step, plan = then
    rest = replace(job, plan=plan, begun=job.plan)
    return [rest] if steps_saved(job) >= step else [replace(job, until=step), rest]


@contextmanager
def _alone(job: TrainingJob, lease: Holder | None) -> Iterator[None]:
    """Lock the run directory for this job, and delete the remains of a crash in it."""
    store = None if job.training.store is None else Remote(job.training.store)
    with (
        nullcontext() if lease is not None else holding(job.out, warn),
        nullcontext() if store is None else holding_store(store, warn),
    ):
        recover(job.checkpoints)
        yield
        if store is not None:  # with the results, which no checkpoint follows
            upload(job.out, store / RECORDS, records_in(job.out))


def check(job: TrainingJob) -> None:
    """Raise what can be checked before any rank trains and anything is written."""
    place = torchrun_place()
    problems = job.plan.check(place.world_size if place is not None else None)
    problems += recipe_problems(job.training, job.plan)
    if problems:
        raise ConfigError("\n".join(problems))
    dataset_of(job, "validation")


def check_start(job: TrainingJob) -> None:
    """Raise if a new training in `job.out` cannot start from `training.start_from`."""
    if job.training.start_from is None:
        return
    given = Path(job.training.start_from)
    if given.resolve().is_relative_to(job.out.resolve()):
        raise ConfigError(
            f"training.start_from ({given}) lies in {job.out}, which is set aside when another training begins "
            f"there; give another --out"
        )
    refuse_given(given, read_manifest(given), identity_of(job), job.training)


def _train_among_others(place: Place, job: TrainingJob) -> None:
    """Train as a rank that another launcher started. A failure is reported with rank, host and step, by the rank that
    failed first, or by one that lost that rank.

    Raises Preempted if the job was asked to end. Then, and after a failure, signals are ignored, so that a launcher
    that ends the remaining ranks changes neither the exit code nor the message.
    """
    end_with_launcher()
    heartbeat = RankHeartbeat()

    def tell(failure: Failure) -> None:
        warn(str(failure.located()))
        failure.note(job.out)

    with keeping_watch(place, heartbeat.all, job.training.supervision, tell) as cause_of:
        try:
            train_rank(place, job, heartbeat)
        except Preempted as ended:
            ignore_signals()
            if isinstance(ended, Unmet) and place.rank == 0:
                # Job files look for this event, because torchrun always exits with 1.
                append_event(job.out, {"event": "preempted", "step": last_step(job.out / METRICS), "in": "starting"})
            raise
        except Exception as error:
            ignore_signals()
            report = str(error) if isinstance(error, TriviumError) else f"{type(error).__name__}: {error}"
            code = getattr(error, "exit_code", 1)
            failed = RankFailed(place.rank, dict.fromkeys(range(place.world_size)), report)
            failure = Failure(failed, heartbeat.all.of(0), socket.gethostname())
            if isinstance(error, TriviumError) and error.on_every_rank:
                if place.local_rank:
                    os._exit(code)  # the first rank of each host reports it
                if place.rank == 0:
                    failure.note(job.out)
                raise
            cause = cause_of(failure)
            if cause is None:
                os._exit(code)  # silently: thousands fail because the first one did
            cause.note(job.out)
            raise error_of(code, str(cause.located())) from error


@dataclass
class Supervisor:
    """The launcher while the ranks of `job` run on this machine. requests: the signals that it received."""

    job: TrainingJob
    requests: Requests
    progress: Progress
    watch: Watch

    def run(self, after_failure: Sequence[Plan]) -> Plan:
        """Run the job to its end, with restarts; return the plan under which it ended.

        Restarts are counted from the newest checkpoint: a newer one renews them. Raises Preempted if the job was asked
        to end, and otherwise its last failure.
        """
        plan, restarts, failed_before = self.job.plan, 0, None
        plans, saved = iter(after_failure), steps_saved(self.job)
        while True:
            heartbeats = Heartbeats(plan.layout.world_size)
            try:
                self._attempt(replace(self.job, plan=plan), heartbeats)
                return plan
            except RankFailed as caught:
                if caught.exits.get(caught.rank) == Preempted.exit_code:
                    raise self.requests.preempted(caught.cause) from None
                found = Failure(caught, heartbeats.of(caught.rank), socket.gethostname())
                found.note(self.job.out, with_host=False)
                failure = found.located(with_host=False)
                self._refuse_to_restart(failure)
                if failed_before == found.at.step:
                    raise _as_reported(failure, "\nstopped: it failed there twice, and would again") from None
                if steps_saved(self.job) > saved:
                    restarts, saved = 0, steps_saved(self.job)
                if restarts >= self.job.training.restarts:
                    raise _as_reported(failure) from None
                failed_before = found.at.step
            plan = next(plans, plan)
            restarts += 1
            self._pause(failure, restarts)
            recover(self.job.checkpoints)

    def _attempt(self, job: TrainingJob, heartbeats: Heartbeats) -> None:
        _import_for_ranks(job.plan)
        with held_back():
            ranks = start_ranks(_rank, job.plan.layout.world_size, job, heartbeats)
        watchdog = Watchdog(heartbeats, ranks.pids, job.training.supervision)
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
            self._obey(heartbeats)
            watchdog.look()

        ranks.wait(watch=look_after)
        look()

    def _obey(self, heartbeats: Heartbeats | None) -> None:
        """Pass a request to end on to the ranks, if there are any, and end if they do not follow it in time."""
        asked = self.requests.asked
        if not asked:
            return
        if self.requests.again:
            raise EndedAtOnce(self.requests.again)
        if heartbeats is None:
            raise self.requests.preempted(f"received {asked} {RESUMES}")
        if self.requests.by_user and any(heartbeats.of(rank).step == 0 for rank in range(heartbeats.world_size)):
            raise self.requests.preempted(f"received {asked} before the first step; nothing is lost")
        if not heartbeats.asked_to_end:
            warn(
                f"received {asked}: saving after this step, then exiting; a second signal exits at once without saving"
            )
        heartbeats.ask_to_end()
        patience = self.job.training.supervision.preemption_seconds
        if time.monotonic() - self.requests.since > patience:
            raise self.requests.preempted(
                f"received {asked}, and the ranks did not save within training.supervision.preemption_seconds "
                f"({patience:g}); ended {RESUMES}"
            )

    def _refuse_to_restart(self, failure: RankFailed) -> None:
        """Raise the error of a failure after which no restart is of use."""
        if failure.exits.get(failure.rank) in NOT_WORTH_REPEATING:
            raise _as_reported(failure)
        if self.requests.again:
            raise EndedAtOnce(self.requests.again)
        if self.requests.asked:
            raise self.requests.preempted(f"{failure}\nit had received {self.requests.asked} {RESUMES}")

    def _pause(self, failure: RankFailed, restarts: int) -> None:
        """Report the failure, and wait before the n-th restart, twice as long as before the previous one."""
        first = self.job.training.supervision.restart_seconds
        seconds = min(first * 2 ** (restarts - 1), max(first, LONGEST_PAUSE_SECONDS))
        warn(str(failure))
        allowed = self.job.training.restarts
        warn(
            f"restart {restarts} of {allowed} in {seconds:g} s, from the last checkpoint; a newer one resets the count"
        )
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._obey(None)
            time.sleep(min(0.02, seconds))
        self._obey(None)


def steps_saved(job: TrainingJob) -> int:
    """Return the step of the newest checkpoint, or -1."""
    return max((step_of(path.name) or 0 for path in published(job.checkpoints)), default=-1)


def _as_reported(failure: RankFailed, more: str = "") -> TriviumError:
    """Return an error of the class that the rank raised, so that the exit code tells what was wrong."""
    return error_of(failure.exits.get(failure.rank), f"{failure}{more}")


def _import_for_ranks(plan: Plan) -> None:
    """Import what ranks import in their first step: ranks that are forked after that share its memory."""
    observer_classes()
    if plan.layout.pipeline > 1:
        importlib.import_module("torch.fx.experimental.symbolic_shapes")  # a backward from a given gradient
    if plan.recompute.mode != "none":
        importlib.import_module("torch._dynamo")


def _rank(place: Place, job: TrainingJob, heartbeats: Heartbeats) -> None:
    heartbeats.tell_stacks(place.rank)
    train_rank(place, job, RankHeartbeat(place.rank, heartbeats))


def summarise(job: TrainingJob, predicted: Mapping[int, Mapping[str, int]]) -> dict[str, Any]:
    """Gather what the ranks wrote into summary.json and timeline.json, and return the summary."""
    summary: dict[str, Any] = read_json(job.out / "result.json")
    ranks = [read_json(path) for path in sorted((job.out / "ranks").glob("rank-*.json"))]
    ranks = [r for r in ranks if r["rank"] < job.described.layout.world_size]
    summary["memory_layout"] = {k: getattr(job.described.layout, k) for k in DEGREES}
    summary["memory"] = [
        {k: r[k] for k in ("rank", "coordinate", "categories")} | {"predicted": dict(predicted.get(r["rank"], {}))}
        for r in ranks
    ]
    summary["phases"] = [{k: r[k] for k in ("rank", "coordinate")} | {"seconds": r.get("phases", {})} for r in ranks]
    write_json(job.out / "summary.json", summary)
    first = [r for r in ranks if r["coordinate"]["data"] == 0 and r["coordinate"]["tensor"] == 0]
    spans = [{"pipeline_rank": r["coordinate"]["pipeline"], **span} for r in first for span in r["spans"]]
    write_json(job.out / "timeline.json", spans)
    return summary
