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
from trivium.training.config import TrainingConfig
from trivium.training.loop import Loop, Observer
from trivium.training.metrics import EVENTS, read, warn
from trivium.training.record import checkpoints_of, entry, left_out_of, write_entries
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
            # Delete nothing: the state saved last may be what made this step fail.
            loop.wait_for_writes(may_delete=False)
        if spikes.policy == "stop" or max(self.watch.in_a_row, rewound + 1) > spikes.limit:
            raise DataError(
                f"step {step}: {cause}; training.spikes.policy ({spikes.policy}, at most "
                f"{spikes.limit} in a row) stops here, and this step changed no weight. "
                f"`trivium data show RUN --step {step} --culprit` names the document and the layer; then set "
                f"training.spikes.policy to skip or rewind, or lower training.lr"
            )
        loop.warn(f"step {step}: {cause}; {spikes.policy}")
        if spikes.policy == "rewind":
            self._rewind(loop)

    def _rewind(self, loop: Loop) -> None:
        """Record for good that the last `spikes.batches` batches are skipped, once a checkpoint to go back to is found:
        later starts ignore checkpoints that saw skipped samples, and would find none if that one were damaged."""
        step, spikes = loop.step, loop.config.spikes
        loop.enter("starting")  # it reads and verifies a checkpoint, which takes longer than a step
        rewind = Rewind(loop.mesh, loop.job.out, loop.config, step)
        back = rewind.checkpoint(loop.alive)
        batch, before = loop.plan.batch, left_out_of(loop.entries)
        first, last = batch.at(rewind.back_to).first_sample, batch.at(step - 1)
        after = before.without(first, last.first_sample + last.sequences)
        entries = [*loop.entries, entry(step, loop.refusal, before, after)]
        found_by_first(lambda: write_entries(loop.job.out, entries), loop.mesh, TriviumError)
        loop.rewind(back)
        loop.note({"event": "rewound", "step": step, "to": loop.step})
        loop.warn(f"step {step}: rewound to step {loop.step}; batches that are skipped from now on: {spikes.batches}")


class Rewind:
    """The search for the checkpoint to go back to from a step, counted from 1. back_to: the steps done before the first
    batch that is skipped."""

    def __init__(self, mesh: Mesh, folder: Path, config: TrainingConfig, step: int) -> None:
        """folder: of the run, with its events."""
        self.mesh, self.folder, self.config, self.step = mesh, folder, config, step
        self.root, self.batches = checkpoints_of(folder, config.store), config.spikes.batches
        self.back_to = max(0, step - self.batches)

    def checkpoint(self, alive: Callable[[], None]) -> Checkpoint | None:
        """Return the newest intact checkpoint before the skipped batches, or None if training begins again, as none so
        old was ever saved; every rank calls this.

        If this step or a later one failed after a rewind to a checkpoint, an older one is used. Raises DataError if
        those that could be used were deleted or tried, and CheckpointError if they are damaged.
        """
        names = found_by_first(self._refuse_deleted, self.mesh, DataError)
        tried = set(found_by_first(self._tried, self.mesh, DataError))
        within = [name for name in names if (step_of(name) or 0) <= self.back_to]
        old = [self.root / name for name in within if step_of(name) not in tried]
        if not old and tried and (within or self._origin in tried):
            raise DataError(
                f"step {self.step}: this step or a later one failed after rewinds to "
                f"{', '.join(f'step {s}' for s in sorted(tried))}, and no older checkpoint is left to go back to; "
                f"nothing was left out or deleted. Lower training.lr (it is {self.config.lr:g}) in another --out, or "
                f"set training.spikes.policy to skip, and run again"
            )
        found, problems = first_intact(old[::-1], self.mesh, warn, alive)
        if problems and found is None:
            younger, _ = first_intact([self.root / name for name in names[len(old) :]], self.mesh, warn, alive)
            raise CheckpointError(self._damaged(problems, younger))
        if not old and self.config.start_from is not None:  # training begins again with that
            Checkpoint.open_together(self.config.start_from, self.mesh, alive)
        return found

    def _damaged(self, problems: Sequence[str], younger: Checkpoint | None) -> str:
        instead = "restore it"
        if younger:
            fewer = self.step - younger.step
            instead += f", lower training.spikes.batches to {fewer} to go back to step {younger.step}"
        return (
            f"step {self.step}: a rewind by training.spikes.batches ({self.batches}) needs the state after step "
            f"{self.back_to} or one before, and all of those are damaged: {problems[0]}; nothing was "
            f"skipped or deleted. To continue, {instead}, or set training.spikes.policy to skip, and run again"
        )

    def _tried(self) -> list[int]:
        """Return the steps to which rewinds went back from this step or a later one."""
        rewound = (e for e in read(self.folder / EVENTS) if e.get("event") == "rewound" and "to" in e)
        return sorted({int(e["to"]) for e in rewound if e["step"] >= self.step})

    def _refuse_deleted(self) -> list[str]:
        """Return the names of all checkpoints, oldest first. Raises DataError if those that could be used were deleted
        since: only if none so old was ever saved may training begin again."""
        names = [path.name for path in published(self.root)]
        kept = [s for name in names if (s := step_of(name)) is not None]
        if any(s <= self.back_to for s in kept):
            return names
        origin, events = self._origin, read(self.folder / EVENTS)
        saved = [e["step"] for e in events if e.get("event") == "saved" and "step" in e]
        if origin <= self.back_to and not (kept and any(s <= self.back_to for s in saved)):
            warn(
                f"{self.root} has no checkpoint of step {self.back_to} or before: training begins again with step "
                f"{origin}"
            )
            return names
        oldest = origin if origin > self.back_to else min(kept)
        raise DataError(
            f"step {self.step}: a rewind by training.spikes.batches ({self.batches}) needs the state after step "
            f"{self.back_to} or one before, and the oldest left is that of step {oldest}; nothing was left out or "
            f"deleted. Lower training.spikes.batches to {self.step - oldest}, or set training.spikes.policy=skip, and "
            f"run again"
        )

    @property
    def _origin(self) -> int:
        """The steps done before the run's own first one."""
        if self.config.start_from is None or self.config.start_with != "state":
            return 0
        return int(read_manifest(Path(self.config.start_from))["step"])
