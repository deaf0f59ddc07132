"""Starts a training job: checks it, runs its ranks or takes its place among them, and writes the summary."""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from trivium.checkpoint.format import read_manifest
from trivium.checkpoint.lease import Holder, holding
from trivium.checkpoint.save import recover
from trivium.comms.launch import Place, RankFailed, Ranks, end_with_launcher, torchrun_place
from trivium.comms.meeting import Unmet
from trivium.errors import ConfigError, Preempted, TriviumError, error_of
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent
from trivium.provenance import write_json
from trivium.training.loop import CHECKPOINTS, TrainingJob, dataset_of, identity_of
from trivium.training.metrics import METRICS, append_event, last_step, warn
from trivium.training.rank import train_rank
from trivium.training.rates import recipe_problems
from trivium.training.same_work import (
    STATE_GIVEN,
    refuse_cut_decay,
    refuse_no_steps_left,
    refuse_other_weights,
    refuse_other_work,
    refuse_weights_alone,
)
from trivium.training.supervision.neighbours import Failure, keeping_watch
from trivium.training.supervision.preemption import ignore_signals, listening
from trivium.training.supervision.pulse import Post
from trivium.training.supervision.supervise import Supervisor, Watch, note_failure
from trivium.untrusted import read_json


def start(
    job: TrainingJob,
    *,
    progress: Progress = silent,
    after_failure: Sequence[Plan] = (),
    watch: Watch | None = None,
    predicted: Mapping[int, Mapping[str, int]] | None = None,
    lease: Holder | None = None,
) -> dict[str, Any]:
    """Train to the end and return the summary.

    Under torchrun this process takes its place among the ranks. Otherwise the ranks are forked here, and a job
    that loses one is restarted, up to `training.restarts` times from the same checkpoint; the n-th restart
    takes the n-th plan of `after_failure` if there is one. predicted: bytes by rank and category, kept in the
    summary beside the counted ones. lease: of the run directory, where the caller holds it. Raises Preempted when
    SIGTERM, SIGUSR1 or SIGINT, to this process or to a rank, ended the job before that; all ranks have then saved, if
    they had done a step.
    """
    job = replace(job, tokens=Path(job.tokens), out=Path(job.out))
    check(job)
    place = torchrun_place()
    if place is not None:
        if place.rank != 0:
            _train_among_others(place, job)
            return {}
        with _alone(job, lease):
            _train_among_others(place, job)
            return summarise(job, predicted or {})
    with _alone(job, lease), listening(_polls) as requests:
        supervisor = Supervisor(job, requests, progress, watch or _nobody_watches)
        plan = supervisor.see_through(after_failure)
        return summarise(replace(job, plan=plan), predicted or {})


def _train_among_others(place: Place, job: TrainingJob) -> None:
    """Train as a rank that another launcher started. A failure is reported with rank, host and step, by the rank that
    failed first, or by one that lost that rank.

    Raises Preempted when the job was asked to end. Then, and after a failure, signals are ignored, so that a launcher
    that now ends the remaining ranks changes neither the exit code nor the message.
    """
    end_with_launcher()
    post = Post()

    def tell(failure: Failure) -> None:
        warn(str(failure.located))
        note_failure(job.out, failure.located, failure.at, failure.host)

    with keeping_watch(place, post.pulse, job.training.supervision, tell) as cause_of:
        try:
            train_rank(place, job, post)
        except Preempted as ended:
            ignore_signals()
            if isinstance(ended, Unmet) and place.rank == 0:
                # Job files look for this event, because torchrun always exits with 1.
                at = last_step(job.out / METRICS)
                append_event(job.out, {"event": "preempted", "step": at, "in": "starting"})
            raise
        except Exception as error:
            ignore_signals()
            report = str(error) if isinstance(error, TriviumError) else f"{type(error).__name__}: {error}"
            code = getattr(error, "exit_code", 1)
            failed = RankFailed(place.rank, dict.fromkeys(range(place.world_size)), report)
            failure = Failure(failed, post.pulse.of(0), socket.gethostname())
            if isinstance(error, TriviumError) and error.on_every_rank:
                if place.local_rank:
                    os._exit(code)  # the first rank of each host says it
                if place.rank == 0:
                    note_failure(job.out, *failure)
                raise
            cause = cause_of(failure)
            if cause is None:
                os._exit(code)  # quietly: thousands fail because the first one did
            note_failure(job.out, cause.located, cause.at, cause.host)
            raise error_of(code, str(cause.located)) from error


def _polls(number: int) -> None:
    """Do nothing: the launcher sees the second signal when it checks its ranks the next time."""


def _nobody_watches(ranks: Ranks, step: int) -> None:
    """The default watch."""


@contextmanager
def _alone(job: TrainingJob, lease: Holder | None) -> Iterator[None]:
    """Inside, only this job writes to its run directory; what a crash left there is removed."""
    with nullcontext() if lease is not None else holding(job.out, warn):
        recover(job.out / CHECKPOINTS)
        yield


def check(job: TrainingJob) -> None:
    """Raise what can be checked before any rank trains and anything is written."""
    place = torchrun_place()
    problems = job.plan.check(place.world_size if place is not None else None)
    problems += recipe_problems(job.training, job.plan)
    if problems:
        raise ConfigError("\n".join(problems))
    dataset_of(job, "validation")


def check_start(job: TrainingJob) -> None:
    """Raise if a new training in `job.out` cannot take the weights or the state of `training.start_from`."""
    if job.training.start_from is None:
        return
    given = Path(job.training.start_from)
    if given.resolve().is_relative_to(job.out.resolve()):
        raise ConfigError(
            f"training.start_from ({given}) lies in {job.out}, which is set aside when another training begins "
            f"there; give another --out"
        )
    about, now = read_manifest(given), identity_of(job)
    if job.training.start_with == "weights":
        refuse_other_weights(given, about, now)
    else:
        refuse_other_work(given, about, now, otherwise=STATE_GIVEN)
        refuse_weights_alone(given, about)
        refuse_no_steps_left(given, int(about["step"]), job.training)
        refuse_cut_decay(given, about, job.training, job.plan)


def summarise(job: TrainingJob, predicted: Mapping[int, Mapping[str, int]]) -> dict[str, Any]:
    """Gather what the ranks wrote into summary.json and timeline.json."""
    summary: dict[str, Any] = read_json(job.out / "result.json")
    ranks = [read_json(p) for p in sorted((job.out / "ranks").glob("rank-*.json"))]
    ranks = [r for r in ranks if r["rank"] < job.plan.layout.world_size]
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
