"""Saves checkpoints in the background, deletes those that are no longer kept, and counts failures."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from trivium.checkpoint.agree import found_by_first, wait_for_all
from trivium.checkpoint.durable import explained
from trivium.checkpoint.format import published, step_name, step_of
from trivium.checkpoint.keep import expired, is_due
from trivium.checkpoint.save import Fragment, Saving, copies, prune
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, MachineError, TriviumError
from trivium.provenance import unheard
from trivium.stores.remote import Location
from trivium.training.config import TrainingConfig
from trivium.training.loop import Loop, Observer
from trivium.training.metrics import warn
from trivium.training.state import fragments
from trivium.training.trainer import StepResult


class Saves(Observer):
    """Has at most one save in progress. Every rank calls the same methods in the same order."""

    def __init__(
        self,
        root: Location,
        config: TrainingConfig,
        mesh: Mesh,
        note: Callable[[dict[str, Any]], None],
        alive: Callable[[], None] = unheard,
    ) -> None:
        """root: where the checkpoints go. note: records an event of the run; called on the first rank. alive: a
        heartbeat, called while training waits for a save."""
        self.root, self.config, self.mesh, self._note, self._alive = root, config, mesh, note, alive
        self._saving: Saving | None = None
        self._pruning: threading.Thread | None = None
        self._failures = 0  # in a row
        self._passed_over: set[int] = set()
        self.step_refused = False  # the last step done here, so that nothing shows the newest state to be good
        self._unproven: int | None = None  # saved, and nothing older was deleted for it yet

    def resume(self, loop: Loop) -> None:
        found_by_first(lambda: self.go_on_from(loop.step), self.mesh, TriviumError)

    def needs_checkpoint(self, loop: Loop) -> bool:
        c = self.config
        return is_due(loop.step, every=c.checkpoint_every, last=c.steps, milestones=c.milestones)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        loop.enter("saving")
        self.step_refused = bool(loop.refusal)
        self.look()

    def at_checkpoint(self, loop: Loop) -> None:
        self.begin(loop.step, fragments(loop.trainer), loop.about_state())

    def wait_for_writes(self, loop: Loop, *, may_delete: bool) -> None:
        self.settle(may_delete=may_delete)

    def finish(self, loop: Loop) -> None:
        loop.enter("saving")
        self.end()

    def go_on_from(self, step: int) -> None:
        """Training continues after `step` steps. Later checkpoints were skipped as damaged: they neither count as kept
        nor are deleted until they are saved again. Called on the first rank."""
        self._passed_over = {s for s in self._published() if s > step}
        self._unproven = None

    def begin(self, step: int, fragments: Sequence[Fragment], about: dict[str, Any]) -> None:
        """Save the current state. In the background: returns when it is copied and an earlier save is done."""
        self.settle()
        background = self.config.save == "background"
        try:
            self._saving = Saving(
                self.root,
                step,
                copies(fragments) if background else fragments,
                self.mesh,
                about,
                self._alive,
                self.config.read_back,
            )
        except CheckpointError as error:
            self._failed(step, error)
        if not background:
            self.settle(may_delete=False)

    def look(self) -> None:
        """Check the save in progress. Delete what it replaces if the step was accepted, which shows that the state
        saved before it is good. Called after every step."""
        self._advance(wait=False)
        self._thin_out()

    def settle(self, *, may_delete: bool = True) -> None:
        """Wait until nothing is being written. may_delete: first delete older checkpoints that are no longer kept;
        otherwise they stay, because the saved state may be bad."""
        self._advance(wait=True)
        if may_delete:
            self._thin_out()
        wait_for_all(self._pruning, self.mesh, self._alive)  # only the first rank deletes
        self._pruning = None

    def end(self) -> None:
        """Wait for the last save. Raises MachineError if it failed."""
        self.settle()
        if self._failures:
            raise MachineError(
                f"the last checkpoint under {self.root} was not saved, so the end of this training is lost; "
                f"fix the cause in the warning above, and rerun the same command to resume from the previous checkpoint"
            )

    def _advance(self, *, wait: bool) -> None:
        saving = self._saving
        if saving is None:
            return
        try:
            if not saving.advance(wait=wait):
                return
        except CheckpointError as error:
            self._saving = None
            self._failed(saving.step, error)
            return
        self._saving, self._failures = None, 0
        if self.mesh.rank == 0:
            self._passed_over.discard(saving.step)
            self._note({"event": "saved", "step": saving.step})
            self._unproven = saving.step

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
                f"at risk. Fix the cause and rerun the same command, which resumes from the newest checkpoint, if any"
            )

    def _thin_out(self) -> None:
        if self._unproven is not None and not self.step_refused:  # on the first rank
            newest, self._unproven = self._unproven, None
            self._pruning = threading.Thread(target=self._prune, args=(newest,), daemon=True, name="retention")
            self._pruning.start()

    def _prune(self, newest: int) -> None:
        """Delete checkpoints outside the retention policy. A failure only wastes disk space, so it is a warning."""
        try:
            paths, c = self._published(), self.config
            rule = {"keep_last": c.keep_last, "keep_every": c.keep_every, "reach": c.spikes.reach}
            doomed = expired(paths.keys() - self._passed_over, newest=newest, milestones=c.milestones, **rule)
            prune(self.root, [paths[s] for s in doomed], self.root / step_name(newest))
        except (OSError, TriviumError) as error:
            warn(f"old checkpoints were not deleted: {explained(error, self.root, 0)}")

    def _published(self) -> dict[int, Location]:
        return {s: path for path in published(self.root) if (s := step_of(path.name)) is not None}
