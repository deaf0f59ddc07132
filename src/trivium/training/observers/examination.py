"""Evaluates the model on published tasks during training, and appends the results to tasks.jsonl."""

import time

from trivium.checkpoint.agree import found_by_first
from trivium.errors import TriviumError
from trivium.training.config import is_nth
from trivium.training.loop import Examiner, Loop, Observer
from trivium.training.metrics import TASKS, append, forget_after, is_evaluated


class Examination(Observer):
    """Evaluates every `training.evaluation.every` steps, and after the last one. The state is always saved before,
    because an evaluation may take longer than the time that a preempted job has."""

    def __init__(self, examiner: Examiner) -> None:
        self._examiner = examiner

    def resume(self, loop: Loop) -> None:
        """Note whether the job before ended after a save and before the evaluation that was due."""
        path = loop.job.out / TASKS

        def look() -> bool:
            forget_after(path, loop.step)
            return is_evaluated(path, loop.step)

        self._done = loop.step if found_by_first(look, loop.mesh, TriviumError) else None

    def has_long_work(self, loop: Loop) -> bool:
        every = loop.config.evaluation.every
        return is_nth(loop.step, every) or (every > 0 and loop.step == loop.config.steps)

    def evaluate(self, loop: Loop) -> None:
        if not self.has_long_work(loop) or loop.step == self._done:
            return
        loop.wait_for_writes(may_delete=True)
        loop.enter("evaluating")
        with loop.trainer.weights_held() as stages:
            scores = self._examiner(stages, loop.plan, loop.mesh, loop.alive)
        if loop.is_first_rank:
            record = {"step": loop.step, "time": time.time(), "tokens": loop.tokens_seen, "tasks": scores}
            append(loop.job.out / TASKS, record)
