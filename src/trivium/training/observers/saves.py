"""Saves checkpoints in the background, deletes those that are no longer kept, and counts failures."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trivium.checkpoint.agree import found_by_first, wait_for_all
from trivium.checkpoint.durable import explained
from trivium.checkpoint.format import published, step_name, step_of
from trivium.checkpoint.keep import expired, is_due
from trivium.checkpoint.save import Fragment, Saving, copies, prune
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, MachineError, TriviumError
from trivium.provenance import unheard
from trivium.training.config import TrainingConfig
from trivium.training.loop import Loop, Observer
from trivium.training.metrics import warn
from trivium.training.state import fragments
from trivium.training.trainer import StepResult

Note = Callable[[dict[str, Any]], None]


class Saves(Observer):
    """Has at most one save in progress. Every rank calls the same methods in the same order."""

    def __init__(
        self, root: Path, config: TrainingConfig, mesh: Mesh, note: Note, alive: Callable[[], None] = unheard
    ) -> None:
        """root: where the checkpoints go. note: keeps an event of the run; called on the first rank. alive: called as a
        save goes on that training waits for."""
        self.root, self.config, self.mesh, self._note, self._alive = root, config, mesh, note, alive
        self._saving: Saving | None = None
        self._pruning: threading.Thread | None = None
        self._failures = 0  # in a row
        self._passed_over: set[int] = set()
        self.step_refused = False  # the last step done here, so that nothing shows the newest state to be good
        self._unproven: int | None = None  # saved, and nothing older was deleted for it yet

    def resume(self, loop: Loop) -> None:
        found_by_first(lambda: self.go_on_from(loop.step), self.mesh, TriviumError)

    def start(self, loop: Loop) -> None:
        if loop.step == 0 and self.is_due(0):
            self.at_checkpoint(loop)

    def needs_checkpoint(self, loop: Loop) -> bool:
        return self.is_due(loop.step)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        loop.enter("saving")
        self.step_refused = bool(loop.refusal)
        self.look()

    def at_checkpoint(self, loop: Loop) -> None:
        self.begin(loop.step, fragments(loop.trainer), loop.about_state())

    def wait_for_writes(self, loop: Loop, *, may_delete: bool) -> None:
        if may_delete:
            self.settle()
        else:
            self.wait()

    def finish(self, loop: Loop) -> None:
        loop.enter("saving")
        self.end()

    def go_on_from(self, step: int) -> None:
        """Training continues after `step` steps. Later checkpoints were skipped as damaged: they neither count as kept
        nor are deleted until they are saved again. Called on the first rank."""
        steps = (step_of(path.name) for path in published(self.root))
        self._passed_over = {s for s in steps if s is not None and s > step}
        self._unproven = None

    def is_due(self, step: int) -> bool:
        """Whether the state after `step` steps is saved."""
        c = self.config
        return is_due(step, every=c.checkpoint_every, last=c.steps, milestones=c.milestones)

    def begin(self, step: int, fragments: Sequence[Fragment], about: dict[str, Any]) -> None:
        """Save the state as it is now. In the background: returns when it is copied and an earlier save is done."""
        self.settle()
        background = self.config.save == "background"
        held = copies(fragments) if background else fragments
        try:
            self._saving = Saving(self.root, step, held, self.mesh, about, self._alive)
        except CheckpointError as error:
            self._failed(step, error)
        if not background:
            self.wait()

    def look(self) -> None:
        """Check the save in progress. Delete what it replaces if the step was accepted, which shows that the state
        saved before it is good. Called after every step."""
        self._advance(wait=False)
        self._thin_out()

    def wait(self) -> None:
        """Wait until nothing is being written. Older checkpoints stay, because the saved state may be bad."""
        self._advance(wait=True)
        self._wait_for_pruning()

    def _advance(self, *, wait: bool) -> None:
        if self._saving is None:
            return
        saving = self._saving
        try:
            done = saving.advance(wait=wait)
        except CheckpointError as error:
            self._saving = None
            self._failed(saving.step, error)
            return
        if done:
            self._saving, self._failures = None, 0
            self._acknowledged(saving.step)

    def settle(self) -> None:
        """Wait until nothing is being written, and older checkpoints that are no longer kept are deleted."""
        self._advance(wait=True)
        self._thin_out()
        self._wait_for_pruning()

    def _wait_for_pruning(self) -> None:
        wait_for_all(self._pruning, self.mesh, self._alive)  # only the first rank has any
        self._pruning = None

    def end(self) -> None:
        """Wait for the last save. Raises MachineError if it failed."""
        self.settle()
        if self._failures:
            raise MachineError(
                f"the last checkpoint under {self.root} was not saved, so the end of this training is lost; "
                f"fix the cause in the warning above, and rerun the same command to resume from the previous checkpoint"
            )

    def _acknowledged(self, step: int) -> None:
        if self.mesh.rank != 0:
            return
        self._passed_over.discard(step)
        self._note({"event": "saved", "step": step})
        self._unproven = step

    def _thin_out(self) -> None:
        if self._unproven is not None and not self.step_refused:  # on the first rank
            given, self._unproven = (self._unproven,), None
            self._pruning = threading.Thread(target=self._prune, args=given, daemon=True, name="retention")
            self._pruning.start()

    def _prune(self, newest: int) -> None:
        """Delete checkpoints outside the retention policy. A failure only wastes disk space, so it is a warning."""
        try:
            paths = {s: p for p in published(self.root) if (s := step_of(p.name)) is not None}
            c = self.config
            rule = {"keep_last": c.keep_last, "keep_every": c.keep_every, "reach": c.spikes.reach}
            doomed = expired(paths.keys() - self._passed_over, newest=newest, milestones=c.milestones, **rule)
            prune(self.root, [paths[s] for s in doomed], self.root / step_name(newest))
        except (OSError, CheckpointError) as error:
            warn(f"old checkpoints were not deleted: {explained(error, self.root, 0)}")

    def _failed(self, step: int, error: CheckpointError) -> None:
        """Report a failed save at once. Training stops after `training.save_failures` failures in a row."""
        self._failures += 1
        limit = self.config.save_failures
        if self.mesh.rank == 0:
            warn(f"{error} ({self._failures} of {limit} failures in a row; training continues until then)")
            self._note({"event": "save failed", "step": step, "cause": str(error)})
        if self._failures >= limit:
            raise MachineError(
                f"{error}. training.save_failures ({limit}) saves in a row failed; stopped, so that no more work is "
                f"at risk. Fix the cause and run again to resume from the last checkpoint"
            )
