"""A training job: what to train, from which tokens, into which directory; and the launcher that sees it through."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from trivium.checkpoint.lease import Lease, holding
from trivium.checkpoint.save import recover
from trivium.errors import ConfigError, DataError, TriviumError, error_of
from trivium.parallel.launch import RankFailed, Ranks, start_ranks, torchrun_place
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent
from trivium.provenance import write_json
from trivium.training.metrics import EVENTS, METRICS, append, last_step, warn
from trivium.training.run import CHECKPOINTS, TrainingJob, train_rank

Watch = Callable[[Ranks, int], None]  # called while ranks run, with the last step they finished


def start(
    job: TrainingJob,
    *,
    progress: Progress = silent,
    after_failure: Sequence[Plan] = (),
    watch: Watch | None = None,
    predicted: Mapping[int, Mapping[str, int]] | None = None,
) -> dict[str, Any]:
    """Train to the end and return the summary.

    Under torchrun this process takes its place among the ranks. Otherwise the ranks are forked here, and a job
    that loses one is restarted from its last checkpoint, up to `training.restarts` times; the n-th restart
    takes the n-th plan of `after_failure` if there is one. predicted: bytes by rank and category, kept in the
    summary beside the counted ones.
    """
    check(job)
    place = torchrun_place()
    if place is not None:
        job.plan.checked(place.world_size)
        if place.rank != 0:
            train_rank(place, job)
            return {}
        with _alone(job) as lease:
            train_rank(place, job, lease.renew)
            return summarise(job, predicted or {})
    with _alone(job) as lease:

        def look(ranks: Ranks, step: int) -> None:
            lease.renew()
            if watch is not None:
                watch(ranks, step)

        return _through_failures(job, progress, after_failure, look, predicted or {})


@contextmanager
def _alone(job: TrainingJob) -> Iterator[Lease]:
    """Inside, this job alone writes in its run directory; what a crash left there is cleared away."""
    with holding(job.out, warn) as lease:
        recover(job.out / CHECKPOINTS)
        yield lease


def _through_failures(
    job: TrainingJob,
    progress: Progress,
    after_failure: Sequence[Plan],
    watch: Watch,
    predicted: Mapping[int, Mapping[str, int]],
) -> dict[str, Any]:
    plan, restarts = job.plan, 0
    while True:
        try:
            _attempt(replace(job, plan=plan), progress, watch)
            return summarise(replace(job, plan=plan), predicted)
        except RankFailed as failure:
            record = {
                "event": "rank failed",
                "rank": failure.rank,
                "cause": str(failure),
                "time": time.time(),
            }
            append(job.out / EVENTS, {**record, "step": last_step(job.out / METRICS)})
            if restarts >= job.training.restarts or failure.exits.get(failure.rank) in _NOT_WORTH_REPEATING:
                raise _as_the_rank_said(failure) from None
            plan = after_failure[restarts] if restarts < len(after_failure) else plan
            restarts += 1
            recover(job.out / CHECKPOINTS)
            progress(last_step(job.out / METRICS), job.training.steps, f"{failure}; restart {restarts}")


def check(job: TrainingJob) -> None:
    """Refuse what can be refused before any process exists."""
    problems = job.plan.check()
    unit = job.plan.validation_unit
    if job.training.validation_samples % unit:
        above = -(-job.training.validation_samples // unit) * unit
        problems.append(
            f"training.validation_samples ({job.training.validation_samples}) must be a multiple of batch.micro x "
            f"layout.data x layout.pipeline ({unit}); nearest: {above}"
        )
    if problems:
        raise ConfigError("\n".join(problems))
    if not (job.tokens / "manifest.json").is_file():
        raise DataError(
            f"{job.tokens} holds no token shards (manifest.json is missing); run `trivium tokenize`"
        )


def summarise(job: TrainingJob, predicted: Mapping[int, Mapping[str, int]]) -> dict[str, Any]:
    """Gather what the ranks left into summary.json and timeline.json."""
    summary: dict[str, Any] = json.loads((job.out / "result.json").read_text(encoding="utf-8"))
    ranks = [
        json.loads(p.read_text(encoding="utf-8")) for p in sorted((job.out / "ranks").glob("rank-*.json"))
    ]
    ranks = [r for r in ranks if r["rank"] < job.plan.layout.world_size]
    summary["memory"] = [
        {k: r[k] for k in ("rank", "coordinate", "categories")}
        | {"predicted": dict(predicted.get(r["rank"], {}))}
        for r in ranks
    ]
    summary["phases"] = [
        {k: r[k] for k in ("rank", "coordinate")} | {"seconds": r.get("phases", {})} for r in ranks
    ]
    write_json(job.out / "summary.json", summary)
    first = [r for r in ranks if r["coordinate"]["data"] == 0 and r["coordinate"]["tensor"] == 0]
    spans = [{"pipeline_rank": r["coordinate"]["pipeline"], **span} for r in first for span in r["spans"]]
    write_json(job.out / "timeline.json", spans)
    return summary


# Exit codes of a config, machine, data or checkpoint that is wrong: it would be wrong again.
_NOT_WORTH_REPEATING = (2, 3, 4, 5)


def _attempt(job: TrainingJob, progress: Progress, watch: Watch) -> None:
    ranks = start_ranks(train_rank, job.plan.layout.world_size, job)
    seen = -1

    def look() -> None:
        nonlocal seen
        step = last_step(job.out / METRICS)
        if step != seen:
            seen = step
            progress(step, job.training.steps, "")
        watch(ranks, step)

    ranks.wait(watch=look)
    look()


def _as_the_rank_said(failure: RankFailed) -> TriviumError:
    """The rank's own kind of error, so that the exit code says what was wrong."""
    code = failure.exits.get(failure.rank)
    return error_of(code, str(failure)) if code in _NOT_WORTH_REPEATING else failure
