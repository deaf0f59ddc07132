"""A step of a run done again, on one process: the state before it, and what it consumed."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.checkpoint.format import published, read_manifest
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import ALONE
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, DataError
from trivium.parallel.sharding.zero import Totals
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent
from trivium.tokens.samples import TokenDataset
from trivium.training.loop import CHECKPOINTS
from trivium.training.metrics import EVENTS, read
from trivium.training.rates import lr_of_step
from trivium.training.record import Record, left_out_of
from trivium.training.spikes import SpikeWatch
from trivium.training.state import begin_with, restore
from trivium.training.trainer import Samples, StepResult, Trainer, adam_rule


@dataclass
class Replay:
    """A run on one process, `done` steps after its beginning.

    event: what the run noted when the step spiked, or nothing. started_from: the step of the checkpoint.
    """

    record: Record
    data: TokenDataset
    trainer: Trainer
    spikes: SpikeWatch
    event: dict[str, Any]
    started_from: int
    done: int

    def samples(self, step: int) -> Samples:
        """The batch of a step, counted from 0."""
        return Samples(*self.record.plan.batch.at(step), self.data.rows)

    def advance(self, *, update: bool = True) -> StepResult:
        """Do the next step as the run did it; a spike changes nothing, and without `update` no step does."""
        step, plan = self.done, self.record.plan
        lr = lr_of_step(self.record.training, plan, step)
        self.done += 1
        self.spikes.cause = ""

        def accepts(totals: Totals) -> bool:
            return self.spikes.accepts(totals) and update

        return self.trainer.train_step(step, self.samples(step), lr, accepts=accepts)


def replay_to(record: Record, step: int, progress: Progress = silent) -> Replay:
    """The run as it was before `step` (counted from 1): from the nearest checkpoint before, replayed.

    It runs on one process whatever the layout was, so sums may differ in their last bits. DataError when the run
    never came to the step.
    """
    events = [e for e in read(record.folder / EVENTS) if e.get("event") == "spike" and e.get("step") == step]
    if not events and not record.logged_of(step):
        raise DataError(f"--step {step}: {record.folder} did steps 1 to {record.steps_done}, and noted no spike of it")
    event = events[-1] if events else {}
    entries = record.entries[: event.get("entries", len(record.entries))]
    replay = _begun(record, step, entries, event)
    while replay.done < step - 1:
        replay.advance()
        progress(replay.done, step, f"replaying from step {replay.started_from}")
    return replay


def _begun(record: Record, step: int, entries: tuple[dict[str, Any], ...], event: dict[str, Any]) -> Replay:
    checkpoint = _nearest(record.folder / CHECKPOINTS, step, entries)
    given = record.training.start_from if checkpoint is None else None
    if given is not None and record.training.start_with == "state":
        checkpoint, given = Checkpoint.open(Path(given)), None
    rule = adam_rule(record.training)
    mesh = Mesh.single(ALONE.device)
    trainer = Trainer(
        alone(record.plan), mesh, seed=record.seed, rule=rule, initial=checkpoint is None and given is None
    )
    if checkpoint is not None:
        restore(trainer, checkpoint)
    if given is not None:
        begin_with(trainer, Checkpoint.open_together(Path(given), mesh))
    spikes = SpikeWatch(record.training.spikes, checkpoint.manifest.get("spikes") if checkpoint else None)
    data = record.data.leaving_out(left_out_of(entries))
    started = checkpoint.step if checkpoint else 0
    return Replay(record, data, trainer, spikes, event, started, started)


def alone(plan: Plan) -> Plan:
    """The same model, batch and precision on one process."""
    return Plan(model=plan.model, batch=plan.batch, precision=plan.precision, zero=0).checked()


def _nearest(root: Path, step: int, entries: tuple[dict[str, Any], ...]) -> Checkpoint | None:
    """The newest intact checkpoint from before a step, of the same order of samples; none: start at 0."""
    order = left_out_of(entries)
    for path in reversed(published(root)):
        try:
            about = read_manifest(path)
            seen = about["samples"]
            if about["step"] >= step or left_out_of(about.get("left_out", ())).before(seen) != order.before(seen):
                continue
            checkpoint = Checkpoint.open(path)
            checkpoint.verify()
            return checkpoint
        except CheckpointError:
            continue  # damaged: an older one serves as well, and takes longer
    return None


def finite(result: StepResult) -> bool:
    """Whether a step's totals are numbers."""
    return math.isfinite(result.loss) and math.isfinite(result.gradient_norm)
