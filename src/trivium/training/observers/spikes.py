"""Rejects the update of a step that spikes, and then stops, skips the step, or rewinds to a checkpoint.

A rewind goes back to a checkpoint and continues without the samples of the spike. If the process dies at any moment of
it, neither is lost.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trivium.checkpoint.agree import found_by_first
from trivium.checkpoint.format import published, read_manifest, step_of
from trivium.checkpoint.load import Checkpoint, first_intact
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, DataError, TriviumError
from trivium.finite import finite_or_text
from trivium.parallel.sharding.zero import Totals
from trivium.plan.batch import Batch
from trivium.training.config import TrainingConfig
from trivium.training.loop import CHECKPOINTS, Loop, Observer
from trivium.training.metrics import EVENTS, read, warn
from trivium.training.record import Entry, entry, left_out_of, write_entries
from trivium.training.spikes import SpikeWatch
from trivium.training.state import soundness
from trivium.training.trainer import StepResult


class Spikes(Observer):
    """Applies `training.spikes.policy`."""

    def resume(self, loop: Loop) -> None:
        self.watch = SpikeWatch(loop.config.spikes, loop.manifest.get("spikes"))

    def saved_state(self) -> dict[str, Any]:
        return {"spikes": self.watch.state}

    def objection(self, totals: Totals) -> str:
        self.watch.accepts(totals)
        return self.watch.cause

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Report a spike, which changed no weight; then stop, continue, or rewind the loop."""
        if not loop.refusal:
            return
        spikes, step, cause = loop.config.spikes, loop.step, loop.refusal
        totals = {"loss": result.loss, "gradient_norm": result.gradient_norm}
        event = {"event": "spike", "step": step, "cause": cause, "policy": spikes.policy}
        event |= {name: finite_or_text(value) for name, value in totals.items()}
        loop.note({**event, "batch_hash": result.batch_hash, "entries": len(loop.entries)})
        rewound = sum(entry["step"] == step for entry in loop.entries)
        if not all(map(math.isfinite, totals.values())):
            cause += f"; {soundness(loop.trainer, step - 1)}"
        if spikes.policy != "skip":
            # Delete nothing: what was saved last may be what made this step fail.
            loop.wait_for_writes(may_delete=False)
        if spikes.policy == "stop" or max(self.watch.in_a_row, rewound + 1) > spikes.limit:
            raise DataError(
                f"step {step}: {cause}; training.spikes.policy ({spikes.policy}, at most "
                f"{spikes.limit} in a row) stops here, and this step changed no weight. `trivium data culprit` names "
                f"the document and the layer; then set training.spikes.policy to skip or rewind, or lower training.lr"
            )
        loop.warn(f"step {step}: {cause}; {spikes.policy}")
        if spikes.policy == "rewind":
            self._rewind(loop)

    def _rewind(self, loop: Loop) -> None:
        step = loop.step
        loop.enter("starting")  # it reads and verifies a checkpoint, which takes longer than a step
        to, number = (loop.mesh, loop.job.out), step - 1
        back = way_back(*to, loop.job.out / CHECKPOINTS, step=number, config=loop.config, alive=loop.alive)
        leave_out(*to, loop.entries, loop.plan.batch, step=number, config=loop.config, cause=loop.refusal)
        loop.rewind(back)
        loop.note({"event": "rewound", "step": step, "to": loop.step})
        skipped = loop.config.spikes.batches
        loop.warn(f"step {step}: rewound to step {loop.step}; batches that are skipped from now on: {skipped}")


def way_back(
    mesh: Mesh, folder: Path, root: Path, *, step: int, config: TrainingConfig, alive: Callable[[], None]
) -> Checkpoint | None:
    """The newest intact checkpoint from before the batches that a rewind at `step` (counted from 0) leaves out; None
    where training begins again, as none so old was ever saved. Every rank must ask, before it is recorded what is left
    out: later starts pass over what saw that, and would find nothing if this were damaged.

    No rewind goes back twice to where it failed from: once this step has failed again after a rewind to a checkpoint,
    an older one is taken.

    DataError where those that a rewind could go back to were deleted or tried, CheckpointError where they are damaged.
    folder: where the record and the events are. root: where the checkpoints are. alive: called as they are verified.
    """
    names = found_by_first(lambda: refuse_no_way_back(folder, root, config, step), mesh, DataError)
    begin = _first_left_out(config, step)
    tried = set(found_by_first(lambda: _tried(folder, step), mesh, DataError))
    within = [name for name in names if (step_of(name) or 0) <= begin]
    old = [root / name for name in within if step_of(name) not in tried]
    if not old and tried and (within or _origin(config) in tried):
        raise DataError(_all_tried(step, sorted(tried), config))
    found, problems = first_intact(old[::-1], mesh, warn, alive)
    if problems and found is None:
        younger, _ = first_intact([root / name for name in names[len(old) :]], mesh, warn, alive)
        raise CheckpointError(_damaged(config, step, problems[0], younger))
    if not old and config.start_from is not None:  # it begins again with that
        Checkpoint.open_together(Path(config.start_from), mesh, alive)
    return found


def leave_out(
    mesh: Mesh, folder: Path, entries: Sequence[Entry], batch: Batch, *, step: int, config: TrainingConfig, cause: str
) -> None:
    """Record that the last `spikes.batches` batches up to `step` (counted from 0) are left out, for good; every rank
    must ask, when there is a `way_back`. folder: where the record is."""
    before, last = left_out_of(entries), batch.at(step)
    first = batch.at(_first_left_out(config, step)).first_sample
    after = before.without(first, last.first_sample + last.sequences)
    now = [*entries, entry(step + 1, cause, before, after)]
    found_by_first(lambda: write_entries(folder, now), mesh, TriviumError)


def _damaged(config: TrainingConfig, step: int, problem: str, younger: Checkpoint | None) -> str:
    """younger: the oldest intact checkpoint, which is none that this rewind could go back to."""
    instead = "restore it"
    if younger:
        instead += f", lower training.spikes.batches to {step + 1 - younger.step} to go back to step {younger.step}"
    return (
        f"step {step + 1}: a rewind by training.spikes.batches ({config.spikes.batches}) needs the state after step "
        f"{_first_left_out(config, step)} or one before, and all there is of those is damaged: {problem}; nothing was "
        f"left out or deleted. To go on, {instead}, or set training.spikes.policy to skip, and run again"
    )


def _tried(folder: Path, step: int) -> list[int]:
    """The steps that rewinds went back to from the one after `step` (counted from 0) or a later one."""
    went = (e for e in read(folder / EVENTS) if e.get("event") == "rewound" and "to" in e)
    return sorted({int(e["to"]) for e in went if e["step"] > step})


def _all_tried(step: int, tried: Sequence[int], config: TrainingConfig) -> str:
    return (
        f"step {step + 1}: failed again after rewinds to {', '.join(f'step {s}' for s in tried)}, and no older "
        f"checkpoint is left to go back to; nothing was left out or deleted. Lower training.lr (it is {config.lr:g}) "
        f"in another --out, or set training.spikes.policy to skip, and run again"
    )


def _first_left_out(config: TrainingConfig, step: int) -> int:
    """The first step, counted from 0, whose batch a rewind at `step` leaves out."""
    return max(0, step + 1 - config.spikes.batches)


def refuse_no_way_back(folder: Path, root: Path, config: TrainingConfig, step: int) -> list[str]:
    """DataError when the checkpoints that a rewind at `step` (counted from 0) could go back to were deleted since; the
    names of all that there are, oldest first.

    To its own beginning a training goes back only where none so old was ever saved, and that is told.
    """
    batches, begin = config.spikes.batches, _first_left_out(config, step)
    names = [path.name for path in published(root)]
    kept = [s for name in names if (s := step_of(name)) is not None]
    if any(s <= begin for s in kept):
        return names
    origin, events = _origin(config), read(folder / EVENTS)
    saved = [e["step"] for e in events if e.get("event") == "saved" and "step" in e]
    if origin <= begin and not (kept and any(s <= begin for s in saved)):
        warn(f"{root} has no checkpoint of step {begin} or before: training begins again with step {origin}")
        return names
    oldest = origin if origin > begin else min(kept)
    raise DataError(
        f"step {step + 1}: a rewind by training.spikes.batches ({batches}) needs the state after step {begin} or one "
        f"before, and the oldest left is that of step {oldest}; nothing was left out or deleted. Lower "
        f"training.spikes.batches to {step + 1 - oldest}, or set training.spikes.policy=skip, and run again"
    )


def _origin(config: TrainingConfig) -> int:
    """The steps done before a run's own first one."""
    if config.start_from is None or config.start_with != "state":
        return 0
    return int(read_manifest(Path(config.start_from))["step"])
