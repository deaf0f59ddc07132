"""fp16 trains with a dynamic loss scale, equally under every layout; steps that overflow change nothing. bf16 sums
gradients in fp32."""

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
from trivium.training.loss_scale import GROWTH_STEPS, MAX_SCALE, MIN_SCALE, LossScale
from trivium.training.trainer import Samples, Trainer


@pytest.mark.parametrize(
    ("before", "finite", "after"),
    [
        (LossScale(8.0, 7), [False], LossScale(4.0, 0)),
        (LossScale(4.0, 0), [True] * GROWTH_STEPS, LossScale(8.0, 0)),
        (LossScale(8.0, GROWTH_STEPS - 1), [False, True], LossScale(4.0, 1)),  # finite steps in a row count
        (LossScale(MIN_SCALE, 9), [False], LossScale(MIN_SCALE, 0)),
        (LossScale(MAX_SCALE, GROWTH_STEPS - 1), [True], LossScale(MAX_SCALE, 0)),
    ],
)
def test_scale_halves_on_overflow_and_doubles_after_many_finite_steps(before, finite, after) -> None:
    for each in finite:
        before.update(finite=each)
    assert before == after


def trainer(weights: str, rule: AdamRule = AdamRule(), **more) -> Trainer:
    return Trainer(small(precision={"weights": weights}, **more), Mesh.single(), seed=4, rule=rule)


def masters(of: Trainer) -> torch.Tensor:
    return torch.cat([shard.master.detach().clone() for shard in of.optimizer.shards])


def test_overflowing_step_is_skipped_and_the_next_one_is_not() -> None:
    half = trainer("fp16")
    assert half.loss_scale is not None
    half.loss_scale.value = 2.0**40  # overflows fp16 at once
    before, samples = masters(half), Samples(0, 16, random_rows(half.plan))
    half.train_step(0, samples, 1e-3)
    assert half.loss_scale.value == 2.0**39
    assert torch.equal(before, masters(half)) and half.optimizer.steps_done == 0
    half.loss_scale.value = 2.0**10
    half.train_step(0, samples, 1e-3)
    assert half.optimizer.steps_done == 1


def test_overflow_at_the_smallest_scale_is_an_error_and_changes_no_weight() -> None:
    """Unless the caller gives `accepts`, which may skip such a step."""
    half = trainer("fp16")
    assert half.loss_scale is not None
    before, samples = masters(half), Samples(0, 16, random_rows(half.plan))
    half.loss_scale.value = MIN_SCALE
    half.buckets[0].weights[:8] = torch.inf
    with pytest.raises(DataError, match=r"step 7: .* nan .* fp16 at a loss scale of 1.*bf16.*`accepts`"):
        half.train_step(7, samples, 1e-3)
    assert not math.isfinite(half.train_step(8, samples, 1e-3, accepts=lambda totals: False).gradient_norm)
    assert torch.equal(before, masters(half)) and half.optimizer.steps_done == 0
    half.buckets[0].weights.copy_(trainer("fp16").buckets[0].weights)
    assert math.isfinite(half.train_step(9, samples, 1e-3).gradient_norm), "nothing is left of the rejected step"
    assert half.optimizer.steps_done == 1


def test_gradients_of_bf16_micro_batches_are_added_in_fp32() -> None:
    """The sum is the fp32 sum of each micro-batch alone; powers of two scale exactly."""
    half = trainer("bf16")
    micro = half.plan.batch.micro
    alone = [torch.zeros_like(b.gradients) for b in half.buckets]
    assert all(total.dtype == torch.float32 for total in alone)
    for first in range(0, 16, micro):
        half.accumulate(0, Samples(first, micro, random_rows(half.plan)))
        for total, bucket in zip(alone, half.buckets, strict=True):
            total += bucket.reduced() * (micro / 16)
            bucket.clear_gradients()
    half.accumulate(0, Samples(0, 16, random_rows(half.plan)))
    for total, bucket in zip(alone, half.buckets, strict=True):
        torch.testing.assert_close(bucket.reduced(), total, rtol=1e-5, atol=1e-7 * float(total.abs().max()))


@pytest.mark.parametrize("micro", (2, 16))
@pytest.mark.parametrize("clip", (0.0, 0.1))
@pytest.mark.parametrize("weights", ("bf16", "fp16", "fp32"))
def test_update_uses_the_clipped_gradient_without_the_scale(weights: str, clip: float, micro: int) -> None:
    """Adam hardly depends on a factor, so the first moment is checked: (1 - beta1) times the clipped gradient."""
    rule = AdamRule(clip=clip)
    one = trainer(weights, rule, batch={"micro": micro})
    norm = one.train_step(0, Samples(0, 16, random_rows(one.plan)), 1e-3).gradient_norm
    moments = torch.cat([p.states["moment1"] for shard in one.optimizer.shards for p in shard.parts])
    expected = (1 - rule.beta1) * (clip or norm)
    assert norm > 0.1 and float(moments.norm()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("weights", ("bf16", "fp16", "fp32", "fp64"))
def test_gradients_of_one_micro_batch_in_the_weights_dtype_lose_nothing(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without anything to add, every step equals that of fp32 gradients, which round products before adding them."""
    monkeypatch.setattr(product, "multiplies_bf16_slowly", lambda: False)
    found = []
    for gradients in (None, "fp64" if weights == "fp64" else "fp32"):
        plan = small(precision={"weights": weights, "gradients": gradients}, batch={"micro": 16})
        one = Trainer(plan, Mesh.single(), seed=4, rule=AdamRule(clip=0.1))
        results = [one.train_step(n, Samples(16 * n, 16, random_rows(plan)), 1e-2) for n in range(3)]
        assert {b.gradients.dtype for b in one.buckets} == {DTYPES[gradients or weights]}
        found.append((masters(one), [(r.loss, r.gradient_norm) for r in results]))
    (here, told), (expected, expected_told) = found
    assert torch.equal(here, expected) and told == expected_told
    assert all(norm > 0.1 for _, norm in told), "no step was clipped"


@pytest.mark.parametrize("head", ("tied", "untied"))
@pytest.mark.parametrize("micro", (2, 16))
def test_bf16_gradients_are_near_those_of_fp32_even_for_a_token_that_is_half_the_text(head: str, micro: int) -> None:
    """Rounded at each of its occurrences, the gradient of such a token would be half of what it should be."""
    found: list[dict[str, torch.Tensor]] = []
    for weights in ("fp32", "bf16"):
        one = trainer(weights, model={"head": head, "sequence": 256, "hidden": 32, "heads": 2}, batch={"micro": micro})
        draw = np.random.default_rng(0)
        ids = draw.integers(0, one.plan.model.vocabulary, (16, 257))
        ids = np.where(draw.random(ids.shape) < 0.5, 1, ids)
        one.accumulate(0, Samples(0, 16, lambda n, k, ids=ids: Rows.of_text(ids[n : n + k])))
        slots = [(s, b) for b in one.buckets for s in b.slots if len(s.row.shape) == 2]
        found.append({s.row.name: b.reduced()[s.start : s.stop].double() for s, b in slots})
    for name, wide in found[0].items():
        assert float((found[1][name] - wide).norm() / wide.norm()) < 0.02, name
