"""Replays a step of a training on one process: the state before it, and the batch that it consumed."""

import math
from dataclasses import dataclass
from typing import Any

from trivium.checkpoint.format import published, read_manifest
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import ALONE
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, DataError
from trivium.parallel.sharding.zero import Totals
from trivium.progress import Progress, silent
from trivium.stores.remote import Location
from trivium.tokens.samples import TokenDataset
from trivium.training.beside import beside_of
from trivium.training.metrics import EVENTS, read
from trivium.training.rates import lr_of_step
from trivium.training.record import Entry, Record, checkpoints_of, left_out_of
from trivium.training.resume import same_order
from trivium.training.spikes import SpikeWatch
from trivium.training.state import begin_with, restore
from trivium.training.trainer import Samples, StepResult, Trainer, adam_rule


@dataclass
class Replay:
    """A training on one process after `done` steps.

    event: that the training logged when the step spiked, or empty. started_from: the step of the checkpoint.
    """

    record: Record
    data: TokenDataset
    trainer: Trainer
    spikes: SpikeWatch
    event: dict[str, Any]
    started_from: int
    done: int

    def samples(self, step: int) -> Samples:
        """Return the batch of a step, counted from 0."""
        return Samples(*self.record.plan.batch.at(step), self.data.rows)

    def advance(self, *, update: bool = True) -> StepResult:
        """Do the next step as the training did it. A spike changes no weight, and without `update` no step does."""
        step = self.done
        self.done += 1
        self.spikes.cause = ""

        def accepts(totals: Totals) -> bool:
            return self.spikes.accepts(totals) and update

        lr = lr_of_step(self.record.training, self.record.plan, step)
        return self.trainer.train_step(step, self.samples(step), lr, accepts=accepts)


def replay_to(record: Record, step: int, progress: Progress = silent) -> Replay:
    """Return the training as it was before `step` (counted from 1), replayed from the nearest checkpoint before.

    It runs on one process whatever the layout was, so sums may differ in their last bits. Raises DataError if the
    training never reached the step.
    """
    events = [e for e in read(record.folder / EVENTS) if e.get("event") == "spike" and e.get("step") == step]
    if not events and not record.logged_of(step):
        raise DataError(f"--step {step}: {record.folder} did steps 1 to {record.steps_done}, and noted no spike of it")
    event = events[-1] if events else {}
    entries = record.entries[: event.get("entries", len(record.entries))]
    root, given = checkpoints_of(record.folder, record.training.store), record.training.start_from
    checkpoint = _nearest(root, step, entries)
    weights: Checkpoint | None = None
    if checkpoint is None and given is not None:
        opened = Checkpoint.open_together(given, Mesh.single(ALONE.device))
        checkpoint, weights = (opened, None) if record.training.start_with == "state" else (None, opened)
    objective = record.training.objective.made()
    trainer = Trainer(
        record.plan.on_one_process(),
        Mesh.single(ALONE.device),
        seed=record.seed,
        rule=adam_rule(record.training),
        initial=checkpoint is None and (weights is None or bool(record.plan.model.adapters)),
        objective=objective,
    )
    if checkpoint is not None:
        restore(trainer, checkpoint)
    if weights is not None:
        begin_with(trainer, weights)
    spikes = SpikeWatch(record.training.spikes, checkpoint.manifest.get("spikes") if checkpoint else None)
    beside = beside_of(record.tokens, objective)
    data = record.data if beside is None else beside.of_dataset(record.data)
    data, started = data.leaving_out(left_out_of(entries)), checkpoint.step if checkpoint else 0
    replay = Replay(record, data, trainer, spikes, event, started, started)
    while replay.done < step - 1:
        replay.advance()
        progress(replay.done, step, f"replaying from step {started}")
    return replay


def _nearest(root: Location, step: int, entries: tuple[Entry, ...]) -> Checkpoint | None:
    """Return the newest intact checkpoint before a step with the same order of samples, if there is one."""
    for path in reversed(published(root)):
        try:
            about = read_manifest(path)
            if about["step"] < step and same_order(path, about, entries):
                checkpoint = Checkpoint.open(path)
                checkpoint.verify()
                return checkpoint
        except CheckpointError:
            continue  # an older one gives the same, and takes longer
    return None


def finite(result: StepResult) -> bool:
    """Whether the totals of a step are finite."""
    return math.isfinite(result.loss) and math.isfinite(result.gradient_norm)
