"""How good the model is after some of its steps: by validation, and by published tasks."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trivium.comms.mesh import Mesh
from trivium.model.stage import Stage
from trivium.plan.plan import Plan
from trivium.training.config import TrainingConfig
from trivium.training.metrics import METRICS, TASKS, append, forget_after, judges
from trivium.training.observers.slow_ranks import is_nth
from trivium.training.trainer import Samples, Trainer

# Asks the model in these stages, under this plan, and says now and then that it is alive: results as plain data.
Examiner = Callable[[Mapping[int, Stage], Plan, Mesh, Callable[[], None]], dict[str, Any]]


class Judge:
    """Judges the model when it is due, which changes nothing in it, and knows what has been told already; `done` counts
    the steps that were done. Every rank calls the same methods in the same places.

    validation: the samples that every validation reads. examiner: what asks published tasks, where they are wanted.
    """

    def __init__(
        self,
        out: Path,
        plan: Plan,
        config: TrainingConfig,
        mesh: Mesh,
        validation: Samples,
        examiner: Examiner | None,
    ) -> None:
        self.out, self.plan, self.config, self.mesh = out, plan, config, mesh
        self.validation, self.examiner = validation, examiner
        self.loss = math.nan  # of the last validation
        self._told: set[str] = set()  # the files that judge the model as it was when the training went on

    def validates(self, done: int) -> bool:
        """Whether a validation is due."""
        return is_nth(done, self.config.validate_every) or done == self.config.steps

    def examines(self, done: int) -> bool:
        """Whether published tasks are due."""
        every = self.config.evaluation.every if self.examiner else 0
        return is_nth(done, every) or (every > 0 and done == self.config.steps)

    def forget(self, done: int) -> list[str]:
        """Drop what was logged of steps that will be done again; returns what is told of the last that stays."""
        for name in (METRICS, TASKS):
            forget_after(self.out / name, done)
        return [name for name in (METRICS, TASKS) if judges(self.out / name, done)]

    def know(self, told: list[str]) -> None:
        """What `forget` found on the first rank."""
        self._told = set(told)

    def owes_validation(self, done: int) -> bool:
        """Whether a job has ended between a save and its validation. Of a training at its end it is wanted again, which
        has to tell with which loss it ended."""
        return done > 0 and self.validates(done) and (METRICS not in self._told or done == self.config.steps)

    def owes_examination(self, done: int) -> bool:
        """Whether a job has ended between a save and the tasks that were due."""
        return done > 0 and self.examines(done) and TASKS not in self._told

    def validate(self, trainer: Trainer, done: int) -> None:
        """Tell the loss of the validation samples."""
        self.loss = trainer.validate(self.validation)
        self._tell(METRICS, done, {"validation_loss": self.loss} if math.isfinite(self.loss) else {})

    def examine(self, trainer: Trainer, done: int, alive: Callable[[], None]) -> None:
        """Tell the answers to published tasks."""
        if self.examiner is not None:
            with trainer.weights_held() as stages:
                found = self.examiner(stages, self.plan, self.mesh, alive)
            self._tell(TASKS, done, {"tasks": found})

    def _tell(self, name: str, done: int, found: dict[str, Any]) -> None:
        if self.mesh.rank == 0:
            tokens = self.plan.tokens(self.plan.batch.at(done).first_sample)
            append(self.out / name, {"step": done, "time": time.time(), "tokens": tokens, **found})
