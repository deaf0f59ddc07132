"""Validation: the loss on the same samples every `training.validate_every` steps, and at the end."""

import math
import time
from dataclasses import replace

from trivium.checkpoint.agree import found_by_first
from trivium.comms.mesh import Mesh
from trivium.errors import DataError, TriviumError
from trivium.training.config import is_nth
from trivium.training.loop import Loop, Observer, TrainingJob, dataset_of
from trivium.training.metrics import METRICS, append, is_evaluated, warn
from trivium.training.state import soundness
from trivium.training.trainer import Samples


class Validation(Observer):
    """Appends the validation loss to metrics.jsonl."""

    def __init__(self, job: TrainingJob, mesh: Mesh) -> None:
        self._data, wanted = dataset_of(job, "validation"), job.training.validation_samples
        count = min(wanted, self._data.num_samples)  # does not depend on the layout
        self.samples = Samples(0, count, self._data.rows)
        if count < wanted and mesh.rank == 0:
            warn(f"all validation samples are used: {count} instead of {wanted}")

    def resume(self, loop: Loop) -> None:
        """Note whether the job before ended after a save and before the validation that was due."""
        self.samples = replace(self.samples, read=loop.with_beside(self._data).rows)
        path = loop.job.out / METRICS
        is_logged = found_by_first(lambda: is_evaluated(path, loop.step), loop.mesh, TriviumError)
        self._done = loop.step if is_logged else None

    def evaluate(self, loop: Loop) -> None:
        last = loop.step == loop.config.steps  # always validated again, because the summary has its loss
        if last or (is_nth(loop.step, loop.config.validate_every) and loop.step != self._done):
            self._validate(loop)

    def _validate(self, loop: Loop) -> None:
        loop.enter("validating")
        losses = {f"validation_{name}": loss for name, loss in loop.trainer.validate(self.samples).items()}
        if loop.is_first_rank:
            record = {"step": loop.step, "time": time.time(), "tokens": loop.tokens_seen}
            append(loop.job.out / METRICS, record | {name: x for name, x in losses.items() if math.isfinite(x)})
        loop.summary |= {**losses, "validation_samples": self.samples.sequences}
        if math.isfinite(loss := losses["validation_loss"]):
            return
        cause = f"step {loop.step}: the validation loss is {loss}; {soundness(loop.trainer, loop.step)}"
        loop.note({"event": "validation not finite", "step": loop.step, "cause": cause})
        if loop.step < loop.config.steps:  # the next step decides, by the policy about spikes
            loop.warn(cause)
            return
        loop.wait_for_writes(may_delete=False)
        raise DataError(
            f"{cause}. Training has diverged, and no older checkpoint was deleted; lower training.lr (it is "
            f"{loop.config.lr:g}), or train longer before it is reached (training.warmup_tokens)"
        )
