"""Copies the state to this host and to a neighbour, every `training.near.every` steps (checkpoint/near.py)."""

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trivium.checkpoint.agree import first_message, wait_for_all
from trivium.checkpoint.near import Neighbour, copy_name, keep_only, newest_step, send, write
from trivium.checkpoint.save import Fragment, copies
from trivium.comms.mesh import Mesh
from trivium.training.config import is_nth
from trivium.training.loop import Loop, Observer
from trivium.training.state import fragments
from trivium.training.trainer import StepResult


class Near(Observer):
    """Has at most one copy in progress. home: where this host keeps those of this training."""

    def __init__(self, every: int, mesh: Mesh, home: Path, neighbour: Neighbour | None) -> None:
        self.every, self.mesh, self.home, self.neighbour = every, mesh, home, neighbour
        self._thread: threading.Thread | None = None
        self._step, self._problem = 0, ""

    def after_step(self, loop: Loop, result: StepResult) -> None:
        if is_nth(loop.step, self.every) and not loop.checkpoint_due and not loop.refusal:
            loop.enter("saving")
            self._settle(loop)
            about = {"step": loop.step, **loop.about_state()}
            work = (loop.step, copies(fragments(loop.trainer)), about)
            self._thread = threading.Thread(target=self._copy, args=work, daemon=True, name="near copy")
            self._thread.start()

    def resume(self, loop: Loop) -> None:
        self._settle(loop)  # that of the state before a rewind

    def finish(self, loop: Loop) -> None:
        """Delete the copies of a training that is done: they would stay, by default in memory, for ever."""
        self._settle(loop)
        if loop.step == loop.config.steps == newest_step(loop.job.checkpoints, self.mesh):
            shutil.rmtree(self.home, ignore_errors=True)

    def _copy(self, step: int, held: Sequence[Fragment], about: dict[str, Any]) -> None:
        self._step, self._problem = step, ""
        try:
            folder = self.home / copy_name(step, self.mesh.layout.world_size)
            files = write(folder, self.mesh.rank, [fragment.part() for fragment in held], about)
            if self.neighbour is not None:
                send(files, self.neighbour)
        except Exception as error:  # Training continues: there are checkpoints.
            self._problem = f"{type(error).__name__}: {error}"

    def _settle(self, loop: Loop) -> None:
        """Wait for the copy in progress. When every rank has it, delete the older ones."""
        if self._thread is None:
            return
        wait_for_all(self._thread, self.mesh, loop.alive)
        self._thread = None
        problem = first_message(self._problem, self.mesh)
        if problem:
            loop.warn(f"the state after step {self._step} was not copied: {problem}")
            loop.note({"event": "near copy failed", "step": self._step, "cause": problem})
            return
        keep_only(self.home, [copy_name(self._step, self.mesh.layout.world_size)])
        loop.note({"event": "copied near", "step": self._step})
