"""Measures one step of each rank, to compare with predictions: allocated bytes, and the seconds of each action."""

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

    def resume(self, loop: Loop) -> None:
        # The second step, as the first one warms up; at the full batch, so that the pipeline is full.
        begin = max(loop.step, loop.plan.batch.segments[-1].first_step)
        self._measured = min(begin + 3, loop.job.last) if loop.job.begun is None else None

    def before_step(self, loop: Loop, setup: StepSetup) -> None:
        setup.measure = loop.step == self._measured

    def after_step(self, loop: Loop, result: StepResult) -> None:
        if loop.step == self._measured:
            loop.attempt(partial(describe_rank, loop.job.out, loop.trainer, result, loop.seconds))


def describe_rank(out: Path, trainer: Trainer, result: StepResult, seconds: float) -> None:
    """Write ranks/rank-NNNNN.json. seconds: the duration of the measured step."""
    run, mesh, plan = result.run, trainer.mesh, trainer.plan
    shards = trainer.optimizer.shards
    host = [x for shard in shards if shard.is_on_host for x in shard.state]
    optimizer = [x for shard in shards if not shard.is_on_host for x in shard.state]
    folder = out / "ranks"
    folder.mkdir(parents=True, exist_ok=True)
    description = {
        "rank": mesh.rank,
        "coordinate": mesh.at._asdict(),
        "categories": {
            "weights": sum(_bytes(b.shard if plan.zero >= 3 else b.weights) for b in trainer.buckets),
            "gradients": sum(_bytes(b.gradients) for b in trainer.trained),
            "optimizer": sum(map(_bytes, optimizer)),
            "activations": run.peak_saved_bytes,
            **({"host": sum(map(_bytes, host)) + run.peak_host_bytes} if plan.offload.is_used else {}),
        },
        "peak_held": run.peak_held,
        "phases": phases(run, result.update_seconds, seconds),
        "spans": [
            {"action": str(s.event), "start": s.start, "end": s.end} for s in run.spans if isinstance(s.event, Action)
        ],
    }
    write_json(folder / f"rank-{mesh.rank:05d}.json", description)


def phases(run: Run, update_seconds: float, step_seconds: float) -> dict[str, float]:
    """Divide the seconds of a rank's step into phases, from its trace.

    stages: actions, with their tensor collectives. waiting: for activations and gradients of other stages. update: the
    rest of the gradient reduction, the optimizer, and the all-gather of weights. other: reading the batch, and the
    all-reduce of the loss.
    """
    spans = [(isinstance(s.event, Action), s.end - s.start) for s in run.spans]
    stages = sum(seconds for is_action, seconds in spans if is_action)
    waiting = sum(seconds for is_action, seconds in spans if not is_action)
    other = max(0.0, step_seconds - stages - waiting - update_seconds)
    return {"stages": stages, "waiting": waiting, "update": update_seconds, "other": other}


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
