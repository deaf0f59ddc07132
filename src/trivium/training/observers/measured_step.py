"""Measures one step of each rank: the bytes it holds and the seconds of each action, to compare with predictions."""

from functools import partial
from pathlib import Path
from typing import Any

from trivium.parallel.pipeline.executor import Run
from trivium.plan.schedule import Action
from trivium.provenance import write_json
from trivium.training.loop import Loop, Observer, StepSetup
from trivium.training.trainer import StepResult, Trainer


class MeasuredStep(Observer):
    """Writes ranks/rank-NNNNN.json."""

    def start(self, loop: Loop) -> None:
        # The second step, as the first one warms up; at the full batch, so that the pipeline is full.
        begin = max(loop.step, loop.plan.batch.segments[-1].first_step)
        self._measured = min(begin + 3, loop.config.steps)

    def before_step(self, loop: Loop, setup: StepSetup) -> None:
        setup.measure = loop.step == self._measured

    def after_step(self, loop: Loop, result: StepResult) -> None:
        if loop.step == self._measured:
            loop.attempt(partial(describe_rank, loop.job.out, loop.trainer, result, loop.seconds))


def describe_rank(out: Path, trainer: Trainer, result: StepResult, seconds: float) -> None:
    """Write ranks/rank-NNNNN.json, of the step of so many seconds that was measured."""
    run, mesh, plan = result.run, trainer.mesh, trainer.plan
    buckets, shards = trainer.buckets, trainer.optimizer.shards
    state = sum(_bytes(v) for s in shards for part in s.parts for v in part.states.values())
    masters = sum(_bytes(s.master) for s in shards) if plan.precision.has_master else 0
    folder = out / "ranks"
    folder.mkdir(parents=True, exist_ok=True)
    description = {
        "rank": mesh.rank,
        "coordinate": mesh.at._asdict(),
        "categories": {
            "weights": sum(_bytes(b.shard if plan.zero >= 3 else b.weights) for b in buckets),
            "gradients": sum(_bytes(b.gradients) for b in trainer.trained),
            "optimizer": state + masters,
            "activations": run.peak_saved_bytes,
        },
        "peak_held": run.peak_held,
        "phases": phases(run, result.update_seconds, seconds),
        "spans": [
            {"action": str(s.event), "start": s.start, "end": s.end} for s in run.spans if isinstance(s.event, Action)
        ],
    }
    write_json(folder / f"rank-{mesh.rank:05d}.json", description)


def phases(run: Run, update_seconds: float, step_seconds: float) -> dict[str, float]:
    """Where the seconds of a rank's step went, as far as its trace tells.

    stages: actions, with their tensor collectives. waiting: for activations and gradients of other stages, or for
    their sending. update: the reduction of gradients that is left, the optimizer, and the publishing of weights.
    other: reading the batch, and agreeing on the loss.
    """
    spans = [(isinstance(s.event, Action), s.end - s.start) for s in run.spans]
    stages = sum(length for acts, length in spans if acts)
    waiting = sum(length for acts, length in spans if not acts)
    other = max(0.0, step_seconds - stages - waiting - update_seconds)
    return {"stages": stages, "waiting": waiting, "update": update_seconds, "other": other}


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
