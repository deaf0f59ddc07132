"""Proof of resume: kill a rank, let the job restart under another layout, and compare with the uninterrupted run."""

import math
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from trivium.checkpoint.format import published, step_of
from trivium.checkpoint.lease import Holder, holding
from trivium.comms.launch import Ranks
from trivium.errors import CheckpointError, ConfigError, TriviumError
from trivium.plan.layout import Layout
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent
from trivium.provenance import write_json
from trivium.training.config import STEPS_BEFORE_KILL
from trivium.training.loop import DEGREES, TrainingJob
from trivium.training.metrics import EVENTS, METRICS, read, warn
from trivium.training.record import CHECKPOINTS
from trivium.training.supervision.job import start

# Both runs do the same arithmetic on the same samples; only the order of sums differs, by about 1e-7 relative in
# fp32. Training amplifies it: a difference in the weights changes the next gradients. docs/numerics.md has the
# growth that was measured; this bound is far above it and far below what any real error does to a loss.
TOLERANCE = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 5e-2, "fp16": 5e-2, "8 bits": 5e-2}
WHY = (
    "the resumed run adds the same numbers in another order (other tensor, pipeline and data splits), which changes "
    "the last bits in {precision}; training amplifies that from step to step. A lost, repeated or reordered "
    "sample, a wrong moment or a stale weight changes the loss by more than this."
)
COMPARED_STEPS = 20  # after the checkpoint that the proof starts from


def prove_resume(
    job: TrainingJob,
    *,
    reference: Path,
    other: Plan | None = None,
    progress: Progress = silent,
    lease: Holder | None = None,
) -> dict[str, Any]:
    """Continue from a checkpoint of the finished run `reference`, kill a rank, resume, and train a few more steps.

    The killed run starts under the plan of `job` and restarts under `other`, by default a plan whose layout differs.
    Writes proof.json into job.out, which must be empty, and returns it. lease: of job.out, if the caller has it. Raises
    TriviumError if the losses differ by more than the tolerance.
    """
    other, steps = other or another_layout(job.plan), job.training.steps
    begin = starting_checkpoint(reference, steps)
    end = min(steps, begin + COMPARED_STEPS)
    kill_at = begin + max(STEPS_BEFORE_KILL, (end - begin) // 3)
    every = max(1, (kill_at - begin) // 2)
    changes = {"store": None, "checkpoint_every": every, "keep_every": 0, "restarts": 1, "validate_every": steps}
    killing = replace(job, training=job.training.model_copy(update=changes), until=end)
    source = next(p for p in published(reference / CHECKPOINTS) if step_of(p.name) == begin)
    victim = job.plan.layout.world_size - 1
    killed: dict[str, Any] = {}

    def watch(ranks: Ranks, step: int) -> None:
        if not killed and kill_at <= step < end:
            killed.update(rank=victim, step=step, signal="SIGKILL", pid=ranks.pids[victim])
            os.kill(ranks.pids[victim], signal.SIGKILL)

    with nullcontext(lease) if lease is not None else holding(job.out, warn) as held:
        shutil.copytree(source, job.out / CHECKPOINTS / source.name)
        shutil.copy(reference / METRICS, job.out / METRICS)
        start(killing, progress=progress, after_failure=[other], watch=watch, lease=held)
        if not killed:
            raise TriviumError(
                f"the run ended at step {end} before rank {victim} was killed at {kill_at}; train longer"
            )
        proof = _compare(job, reference, range(begin + 1, end + 1), killed, [job.plan.layout, other.layout])
        write_json(job.out / "proof.json", proof)
    if proof["max_loss_difference"] > proof["tolerance"]:
        raise TriviumError(
            f"the resumed run's losses differ from the unbroken run's by up to {proof['max_loss_difference']:.3g}, "
            f"more than {proof['tolerance']:.3g} (see {job.out / 'proof.json'})"
        )
    return proof


def another_layout(plan: Plan) -> Plan:
    """Return a valid plan for as many ranks, or twice as many, whose layout differs most from `plan`'s."""
    basics = {"schedule": "1f1b", "rows": None, "partition": type(plan.partition)(), "sequence_parallel": False}
    for layout in _layouts(plan.layout.world_size, plan.layout):
        other = plan.model_copy(update={"layout": layout, **basics})
        if not other.check():
            return other
    raise ConfigError(
        f"no other legal layout for {plan.layout.world_size} ranks exists for {plan.model.layers} layers, "
        f"{plan.model.heads} heads and batch {plan.batch.sequences}"
    )


def _layouts(ranks: int, now: Layout) -> Iterator[Layout]:
    """Yield other layouts, those that differ from `now` along the most axes first."""
    for total in (ranks, 2 * ranks):
        found = [
            Layout(tensor=t, pipeline=p, data=total // (t * p))
            for t in range(1, total + 1)
            for p in range(1, total // t + 1)
            if total % (t * p) == 0
        ]
        unlike = {x: sum(x.degree(a) != now.degree(a) for a in now.order) for x in found}
        yield from (x for x in sorted(found, key=lambda x: (-unlike[x], -x.pipeline)) if unlike[x])


def starting_checkpoint(reference: Path, steps: int) -> int:
    """Return the step of the last checkpoint from which a rank can still be killed before the last step. Raises
    CheckpointError if there is none."""
    saved = [s for p in published(reference / CHECKPOINTS) if (s := step_of(p.name)) is not None]
    early = [s for s in saved if s + STEPS_BEFORE_KILL < steps]
    if not early:
        raise CheckpointError(
            f"{reference / CHECKPOINTS} holds no checkpoint more than {STEPS_BEFORE_KILL} steps before the last "
            f"({steps}), and a rank is killed between the two; lower training.checkpoint_every or raise "
            f"training.keep_last, and train again"
        )
    return max(early)


def _compare(
    job: TrainingJob, reference: Path, steps: range, killed: dict[str, Any], layouts: list[Layout]
) -> dict[str, Any]:
    begin = steps.start - 1
    unbroken, resumed = (
        {r["step"]: r["loss"] for r in read(path / METRICS) if "loss" in r and r.get("step") in steps}
        for path in (reference, job.out)
    )
    if unbroken.keys() != resumed.keys():
        raise TriviumError(
            f"the resumed run did steps {min(resumed, default=0)}–{max(resumed, default=0)}, the unbroken one "
            f"{min(unbroken, default=0)}–{max(unbroken, default=0)}; they cannot be compared"
        )
    events = read(job.out / EVENTS)
    resumed_from = [begin, *(int(e["step"]) for e in events if e.get("event") == "resumed" and "step" in e)][-1]
    differences = {step: abs(unbroken[step] - resumed[step]) for step in unbroken}
    # A last bit of fp32 may decide how an operand is rounded to 8 bits.
    precision = "8 bits" if job.plan.precision.float8 else job.plan.precision.weights
    return {
        "max_loss_difference": max(differences.values()) if all(map(math.isfinite, differences.values())) else math.inf,
        "tolerance": TOLERANCE[precision],
        "why": WHY.format(precision=precision),
        "layouts": [{k: getattr(x, k) for k in DEGREES} for x in layouts],
        "killed": killed,
        "events": events,
        "started_from": begin,
        "resumed_from": resumed_from,
        "steps_compared": len(differences),
        "losses": [{"step": s, "unbroken": unbroken[s], "resumed": resumed[s]} for s in sorted(unbroken)],
    }
