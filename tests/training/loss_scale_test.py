"""fp16 trains with a dynamic loss scale, alike in every layout; overflowing steps change nothing."""

import inspect
import math

import numpy as np
import pytest
import torch

from plans import small
from trivium.certify.reference import random_rows
from trivium.comms.mesh import Mesh
from trivium.errors import DataError
from trivium.kernels.cpu import product
from trivium.kernels.dtypes import DTYPES
from trivium.parallel.sharding.zero import AdamRule
from trivium.tokens.rows import Rows
from trivium.training.loss_scale import GROWTH_STEPS, LARGEST, LEAST, LossScale
from trivium.training.trainer import Samples, Trainer


def test_the_scale_halves_on_overflow_and_doubles_after_many_finite_steps() -> None:
    scale = LossScale(value=8.0)
    scale.update(finite=False)
    assert scale == LossScale(4.0, 0)
    for _ in range(GROWTH_STEPS):
        scale.update(finite=True)
    assert scale == LossScale(8.0, 0)


def test_the_finite_steps_that_double_the_scale_are_in_a_row_and_it_stays_within_its_bounds() -> None:
    scale = LossScale(8.0, GROWTH_STEPS - 1)
    for finite in (False, True):
        scale.update(finite=finite)
    assert scale == LossScale(4.0, 1)
    for value, finite in ((LEAST, False), (LARGEST, True)):
        scale = LossScale(value, GROWTH_STEPS - 1)
        scale.update(finite=finite)
        assert scale == LossScale(value, 0)


def test_a_scale_begins_and_grows_as_torchs_and_is_a_power_of_two_which_takes_no_bit_of_a_gradient() -> None:
    torchs = inspect.signature(torch.amp.GradScaler).parameters
    assert LossScale().value == torchs["init_scale"].default
    assert torchs["growth_interval"].default == GROWTH_STEPS
    assert {math.frexp(value)[0] for value in (LossScale().value, LEAST, LARGEST)} == {0.5}
    assert LEAST <= LossScale().value <= LARGEST


def trainer(weights: str) -> Trainer:
    return Trainer(small(precision={"weights": weights}), Mesh.single(), seed=4, rule=AdamRule())


def test_an_overflowing_step_is_skipped_and_the_next_one_is_not() -> None:
    half = trainer("fp16")
    assert half.loss_scale is not None
    half.loss_scale.value = 2.0**40  # overflows fp16 at once
    before = [s.master.detach().clone() for s in half.optimizer.shards]
    samples = Samples(0, 16, random_rows(half.plan))
    half.train_step(0, samples, 1e-3)
    assert half.loss_scale.value == 2.0**39
    assert all(torch.equal(a, s.master) for a, s in zip(before, half.optimizer.shards, strict=True))
    assert half.optimizer.steps_done == 0
    half.loss_scale.value = 2.0**10
    half.train_step(0, samples, 1e-3)
    assert half.optimizer.steps_done == 1


def test_what_overflows_at_the_smallest_scale_is_refused_and_changes_no_weight() -> None:
    """Also where nobody judges the steps; a program that does judge them may pass over such a step."""
    half = trainer("fp16")
    assert half.loss_scale is not None
    samples = Samples(0, 16, random_rows(half.plan))
    before = [s.master.detach().clone() for s in half.optimizer.shards]
    half.loss_scale.value = LEAST
    half.buckets[0].weights[:8] = torch.inf
    with pytest.raises(DataError, match=r"step 7: .* nan .* fp16 at a loss scale of 1.*bf16.*`accepts`"):
        half.train_step(7, samples, 1e-3)
    assert not math.isfinite(half.train_step(8, samples, 1e-3, accepts=lambda totals: False).gradient_norm)
    assert all(torch.equal(a, s.master) for a, s in zip(before, half.optimizer.shards, strict=True))
    assert half.optimizer.steps_done == 0
    whole = trainer("fp16")
    half.buckets[0].weights.copy_(whole.buckets[0].weights)
    assert math.isfinite(half.train_step(9, samples, 1e-3).gradient_norm), "nothing is left of what was refused"
    assert half.optimizer.steps_done == 1


@pytest.mark.parametrize(("weights", "tolerance"), [("fp16", 3e-3), ("bf16", 2e-2)])
def test_half_precision_follows_fp32_closely(weights: str, tolerance: float) -> None:
    half, full = trainer(weights), trainer("fp32")
    samples = Samples(0, 16, random_rows(half.plan))
    for step in range(3):
        here, there = (t.train_step(step, samples, 1e-3) for t in (half, full))
        assert here.loss == pytest.approx(there.loss, rel=tolerance)
        assert here.gradient_norm == pytest.approx(there.gradient_norm, rel=10 * tolerance)


def test_gradients_of_bf16_micro_batches_are_added_in_fp32() -> None:
    """Together they are the fp32 sum of each alone; powers of two scale exactly."""
    half = trainer("bf16")
    samples = Samples(0, 16, random_rows(half.plan))
    micro = half.plan.batch.micro
    alone = [torch.zeros_like(b.gradients) for b in half.buckets]
    for first in range(0, 16, micro):
        half.accumulate(0, Samples(first, micro, random_rows(half.plan)))
        for total, bucket in zip(alone, half.buckets, strict=True):
            total += bucket.reduced() * (micro / 16)
            bucket.clear_gradients()
    half.accumulate(0, samples)
    for total, bucket in zip(alone, half.buckets, strict=True):
        torch.testing.assert_close(bucket.reduced(), total, rtol=1e-5, atol=1e-7 * float(total.abs().max()))


def test_gradients_of_bf16_weights_accumulate_in_fp32() -> None:
    """Many small micro-batches lose nothing: the sum is that of fp32 up to the rounding of each one."""
    half = trainer("bf16")
    assert all(b.gradients.dtype == torch.float32 for b in half.buckets)
    samples = Samples(0, 16, random_rows(half.plan))
    half.accumulate(0, samples)
    whole = Trainer(small(precision={"weights": "bf16"}, batch={"micro": 16}), Mesh.single(), seed=4, rule=AdamRule())
    whole.accumulate(0, samples)
    for a, b in zip(half.buckets, whole.buckets, strict=True):
        wide = b.gradients.float()
        torch.testing.assert_close(a.gradients, wide, rtol=0.1, atol=float(wide.abs().max()) * 0.02)


@pytest.mark.parametrize("micro", (2, 16))
@pytest.mark.parametrize("clip", (0.0, 0.1))
@pytest.mark.parametrize("weights", ("bf16", "fp16", "fp32"))
def test_the_update_takes_the_gradient_itself_clipped_and_without_the_scale(
    weights: str, clip: float, micro: int
) -> None:
    """Adam hardly minds a factor, so its first moment is looked at: (1 - beta1) times the clipped gradient."""
    rule = AdamRule(clip=clip)
    plan = small(precision={"weights": weights}, batch={"micro": micro})
    one = Trainer(plan, Mesh.single(), seed=4, rule=rule)
    norm = one.train_step(0, Samples(0, 16, random_rows(plan)), 1e-3).gradient_norm
    moments = torch.cat([p.states["moment1"] for shard in one.optimizer.shards for p in shard.parts])
    expected = (1 - rule.beta1) * (clip or norm)
    assert norm > 0.1 and float(moments.norm()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("weights", ("bf16", "fp16", "fp32", "fp64"))
def test_gradients_to_which_nothing_is_added_stay_as_they_are_and_lose_nothing(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One micro-batch in one process: the gradients take the bytes of the weights, and every step is the very one of
    wide gradients, where products are rounded before they are added to those."""
    monkeypatch.setattr(product, "multiplies_bf16_slowly", lambda: False)
    found = []
    for gradients in (None, "fp64" if weights == "fp64" else "fp32"):
        precision = {"weights": weights, "gradients": gradients}
        plan = small(precision=precision, batch={"micro": 16})
        one = Trainer(plan, Mesh.single(), seed=4, rule=AdamRule(clip=0.1))
        results = [one.train_step(n, Samples(16 * n, 16, random_rows(plan)), 1e-2) for n in range(3)]
        of_weights = weights if gradients is None else gradients
        assert {b.gradients.dtype for b in one.buckets} == {DTYPES[of_weights]}
        masters = torch.cat([shard.master for shard in one.optimizer.shards])
        found.append((masters, [(r.loss, r.gradient_norm) for r in results]))
    (masters, told), (expected, expected_told) = found
    assert torch.equal(masters, expected) and told == expected_told
    assert all(norm > 0.1 for _, norm in told), "no step was clipped"


@pytest.mark.parametrize("head", ("tied", "untied"))
@pytest.mark.parametrize("micro", (2, 16))
def test_every_bf16_gradient_is_near_that_of_fp32_also_of_a_token_that_is_half_the_text(head: str, micro: int) -> None:
    """Rounded at each of its occurrences, such a token's would be half of what it should."""
    found: list[dict[str, torch.Tensor]] = []
    for weights in ("fp32", "bf16"):
        model = {"head": head, "sequence": 256, "hidden": 32, "heads": 2}
        plan = small(model=model, batch={"micro": micro}, precision={"weights": weights})
        draw = np.random.default_rng(0)
        ids = draw.integers(0, plan.model.vocabulary, (16, 257))
        ids = np.where(draw.random(ids.shape) < 0.5, 1, ids)
        one = Trainer(plan, Mesh.single(), seed=4, rule=AdamRule())
        one.accumulate(0, Samples(0, 16, lambda n, k, ids=ids: Rows.of_text(ids[n : n + k])))
        found.append(
            {
                s.row.name: b.reduced()[s.start : s.stop].double()
                for b in one.buckets
                for s in b.slots
                if len(s.row.shape) == 2
            }
        )
    for name, wide in found[0].items():
        assert float((found[1][name] - wide).norm() / wide.norm()) < 0.02, name
