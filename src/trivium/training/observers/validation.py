"""Validation: the loss of the same samples every so many steps, and at the end."""

import math
import time

from trivium.checkpoint.agree import found_by_first
from trivium.comms.mesh import Mesh
from trivium.errors import DataError, TriviumError
from trivium.training.config import is_nth
from trivium.training.loop import Loop, Observer, TrainingJob, dataset_of
from trivium.training.metrics import METRICS, append, is_evaluated, warn
from trivium.training.state import soundness
from trivium.training.trainer import Samples


class Validation(Observer):
    """Validates every `training.validate_every` steps, and after the last one."""

    def __init__(self, job: TrainingJob, mesh: Mesh) -> None:
        data, wanted = dataset_of(job, "validation"), job.training.validation_samples
        count = min(wanted, data.num_samples)  # it does not depend on the layout
        self.samples = Samples(0, count, data.rows)
        if count < wanted and mesh.rank == 0:
            warn(f"validation uses the {count} samples there are, not {wanted}")
        self._is_logged = False

    def resume(self, loop: Loop) -> None:
        path = loop.job.out / METRICS
        self._is_logged = found_by_first(lambda: is_evaluated(path, loop.step), loop.mesh, TriviumError)

    def start(self, loop: Loop) -> None:
        """Make up for the validation of a job that ended after a save and before it. The final step is always validated
        again, because the summary reports its loss."""
        last = loop.step == loop.config.steps
        if loop.step > 0 and self._is_due(loop) and (last or not self._is_logged):
            self._validate(loop)

    def evaluate(self, loop: Loop) -> None:
        if self._is_due(loop):
            self._validate(loop)

    def _is_due(self, loop: Loop) -> bool:
        return is_nth(loop.step, loop.config.validate_every) or loop.step == loop.config.steps

    def _validate(self, loop: Loop) -> None:
        loop.enter("validating")
        losses = {f"validation_{name}": loss for name, loss in loop.trainer.validate(self.samples).items()}
        if loop.is_first_rank:
            tokens = loop.plan.tokens(loop.plan.batch.at(loop.step).first_sample)
            found = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
            append(loop.job.out / METRICS, {"step": loop.step, "time": time.time(), "tokens": tokens, **found})
        loop.summary |= {**losses, "validation_samples": self.samples.sequences}
        if not math.isfinite(loss := losses["validation_loss"]):
            self._report_not_finite(loop, loss)

    def _report_not_finite(self, loop: Loop, loss: float) -> None:
        """Raise DataError if training would end with a validation loss that is not finite. Before its end the next step
        decides, by the policy about spikes."""
        cause = f"step {loop.step}: the validation loss is {loss}; {soundness(loop.trainer, loop.step)}"
        loop.note({"event": "validation not finite", "step": loop.step, "cause": cause})
        if loop.step < loop.config.steps:
            loop.warn(cause)
            return
        loop.wait_for_writes(may_delete=False)
        raise DataError(
            f"{cause}. Training has diverged, and no older checkpoint was deleted; lower training.lr (it is "
            f"{loop.config.lr:g}), or train longer before it is reached (training.warmup_tokens)"
        )
