"""Faults that depend on the number of the step and do not show in three steps: counts, keys, rates, scales, samples."""

from dataclasses import replace
from typing import Any

import torch

from faults.mutant import fault, plan
from trivium.certify.courses import LONG_STEPS
from trivium.certify.ways import LONG_WAY
from trivium.kernels.adamw import Amount
from trivium.kernels.dropout import DropoutKey
from trivium.parallel.sharding.zero import ShardedOptimizer
from trivium.plan.batch import Batch, Step
from trivium.training import rates, trainer
from trivium.training.config import TrainingConfig
from trivium.training.loss_scale import MAX_SCALE, LossScale

Tensor = torch.Tensor

ONE = plan()
RAMPED = plan(batch={"ramp": {"start": 2, "increment": 2, "samples": 6}, "sequences": 6})


@fault(ShardedOptimizer, "_amount", ONE, plan(data=2, zero=1), way=LONG_WAY)
def correction_stops_growing(original, mesh):
    """The count of updates that corrects Adam's moments stops growing at the fifth."""

    def amount(self: ShardedOptimizer, group: int, lr: float) -> Amount:
        found: Amount = original(self, group, lr)
        return found._replace(step=min(found.step, 5))

    return amount


@fault(ShardedOptimizer, "_amount", ONE, way=LONG_WAY)
def decay_ends_with_the_warm_up(original, mesh):
    """Weight decay is applied in the first ten updates only."""

    def amount(self: ShardedOptimizer, group: int, lr: float) -> Amount:
        found: Amount = original(self, group, lr)
        return found if found.step <= 10 else found._replace(weight_decay=0.0)

    return amount


@fault(ShardedOptimizer, "_clear", ONE, way=LONG_WAY)
def moments_begin_again(original, mesh):
    """After 32 updates Adam's second moments begin at zero again."""

    def clear(self: ShardedOptimizer) -> None:
        for shard in self.shards if self.steps_done == 32 else ():
            for part in shard.parts:
                part.states["moment2"].zero_()
        original(self)

    return clear


@fault(trainer, "DropoutKey", ONE, plan(data=2, zero=3), way=LONG_WAY)
def masks_repeat_every_fourth_step(original, mesh):
    """The dropout keys of a step are those of the fourth step before."""
    return lambda seed, step, *more: DropoutKey(seed, step % 4, *more)


@fault(trainer, "DropoutKey", ONE, way=LONG_WAY)
def masks_repeat_after_64_samples(original, mesh):
    """Dropout keys count samples modulo 64 and forget the step."""

    def key(seed: int, step: int, samples: tuple[int, ...], sequence: int) -> DropoutKey:
        right = DropoutKey(seed, step, samples, sequence)
        if min(samples) < 64:
            return right
        return replace(right, step=step % 16, samples=tuple(n % 64 for n in samples))

    return key


@fault(rates, "learning_rate", ONE, way=LONG_WAY)
def rate_of_the_tokens_before(original, mesh):
    """A step's learning rate is that of the tokens consumed when it begins."""
    return lambda config, consumed, last: original(config, consumed - last // LONG_STEPS, last)


@fault(rates, "learning_rate", ONE, way=LONG_WAY)
def rate_rises_after_the_decay(original, mesh):
    """The cosine continues after the end of the decay, so that the learning rate rises again."""

    def rate(config: TrainingConfig, tokens: int, last: int) -> float:
        end = config.decay_tokens or last
        cosine = config.decay == "cosine"
        return original(config, 2 * end - tokens if cosine and tokens > end else tokens, last)

    return rate


@fault(rates, "learning_rate", ONE, way=LONG_WAY)
def rate_falls_to_zero(original, mesh):
    """The decay ends at zero, whatever final rate was chosen."""

    def rate(config: TrainingConfig, tokens: int, last: int) -> float:
        return original(config.model_copy(update={"lr_final_fraction": 0.0}), tokens, last)

    return rate


@fault(rates, "_shape", ONE, way=LONG_WAY)
def final_decay_always_linear(original, mesh):
    """The shape of the final decay after a stable part is not read."""

    def shape(config: TrainingConfig) -> str:
        return original(config.model_copy(update={"final_decay_shape": "linear"}))

    return shape


@fault(rates, "lr_of_step", RAMPED, way=LONG_WAY)
def rate_by_full_batches(original, mesh):
    """The schedule counts every step as one of the full batch, also while the batch is ramped up."""

    def rate(config: TrainingConfig, plan: Any, step: int) -> float:
        constant = plan.batch.model_copy(update={"ramp": None})
        return original(config, plan.model_copy(update={"batch": constant}), step)

    return rate


@fault(LossScale, "update", ONE, way=LONG_WAY)
def scale_never_grows(original, mesh):
    """The loss scale is halved by overflows and never doubled."""

    def update(self: LossScale, *, finite: bool) -> None:
        before = self.value
        original(self, finite=finite)
        self.value = min(self.value, before)

    return update


@fault(LossScale, "update", ONE, way=LONG_WAY)
def overflow_leaves_the_count(original, mesh):
    """An overflow halves the loss scale, and the finite steps before it still count for the next doubling."""

    def update(self: LossScale, *, finite: bool) -> None:
        before = self.finite_steps
        original(self, finite=finite)
        self.finite_steps = self.finite_steps if finite else before

    return update


@fault(LossScale, "update", ONE, way=LONG_WAY)
def scale_without_bound(original, mesh):
    """The loss scale is doubled beyond its largest value."""

    def update(self: LossScale, *, finite: bool) -> None:
        before, counted = self.value, self.finite_steps
        original(self, finite=finite)
        grows = finite and self.finite_steps == 0 and counted > 0
        self.value = min(2 * before, MAX_SCALE) if grows else self.value

    return update


@fault(Batch, "at", ONE, RAMPED, way=LONG_WAY)
def samples_read_again(original, mesh):
    """After 100 samples the first ones are read again."""

    def at(self: Batch, step: int) -> Step:
        right: Step = original(self, step)
        return right._replace(first_sample=right.first_sample % 100)

    return at


@fault(Batch, "at", RAMPED, way=LONG_WAY)
def ramp_reaches_its_end_late(original, mesh):
    """The batch stays at its last size but one when the ramp is over."""

    def at(self: Batch, step: int) -> Step:
        right: Step = original(self, step)
        late = self.ramp is not None and right.sequences == self.sequences
        return right._replace(sequences=right.sequences - self.ramp.increment) if late and self.ramp else right

    return at
