"""Appends a line to metrics.jsonl after every step; a resumed run drops the lines of the steps that it repeats."""

import math
import time
from typing import Any

from trivium.checkpoint.agree import found_by_first
from trivium.cost.compute import flops_per_token
from trivium.errors import TriviumError
from trivium.training.loop import Loop, Observer
from trivium.training.metrics import METRICS, append, forget_after
from trivium.training.rates import lr_of_step
from trivium.training.trainer import StepResult


class Metrics(Observer):
    """Logs the steps; on the first rank."""

    def resume(self, loop: Loop) -> None:
        found_by_first(lambda: forget_after(loop.job.out / METRICS, loop.step), loop.mesh, TriviumError)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        if not loop.is_first_rank:
            return
        plan, seconds = loop.plan, loop.seconds
        batch = plan.batch.at(loop.step - 1)
        tokens, samples = plan.tokens(batch.sequences), batch.first_sample + batch.sequences
        record: dict[str, Any] = {
            "step": loop.step,
            "time": time.time(),
            "tokens": plan.tokens(samples),
            "samples": samples,
            "sequences": batch.sequences,
            **result.losses,
            "lr": lr_of_step(loop.config, plan, loop.step - 1),
            "gradient_norm": result.gradient_norm,
            "batch_hash": result.batch_hash,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "model_flops_per_second": tokens * flops_per_token(plan.model) / seconds,
            **loop.figures,
        }
        if result.loads:
            record["experts"] = {str(layer): load.told() for layer, load in result.loads.items()}
        if loop.refusal:
            record["spike"] = loop.refusal
        if loop.trainer.loss_scale:
            record["loss_scale"] = loop.trainer.loss_scale.value
            record["overflow"] = not (loop.refusal or math.isfinite(result.gradient_norm))  # no update
        record = {k: v for k, v in record.items() if not isinstance(v, float) or math.isfinite(v)}
        append(loop.job.out / METRICS, record)
