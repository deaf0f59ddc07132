"""A GPU's update of many buckets at once equals a CPU's update of one after the other."""

from collections import Counter

import pytest
import torch
from pydantic import ValidationError

from fake_accelerator import accelerator
from plans import small
from trivium.certify.reference import random_rows
from trivium.comms.mesh import Mesh
from trivium.comms.pretend import pretended
from trivium.kernels.cpu import product
from trivium.parallel.sharding import zero
from trivium.parallel.sharding.zero import AdamRule, ShardedOptimizer, squares, together
from trivium.plan.parameters import parameters
from trivium.training.config import TrainingConfig
from trivium.training.state import places
from trivium.training.trainer import Samples, Trainer, adam_rule


@pytest.mark.parametrize("at_once", [0, 5000, 1 << 25])
def test_each_shard_is_in_one_group_in_order(at_once: int) -> None:
    shards = Trainer(small(), Mesh.single(), seed=1, rule=AdamRule()).optimizer.shards
    groups = together(shards, at_once)
    assert [shard for group in groups for shard in group] == shards
    sizes = [[len(shard.master) for shard in group] for group in groups]
    assert all(sum(group) >= at_once for group in sizes[:-1])
    assert all(sum(group[:-1]) < max(1, at_once) for group in sizes)


@pytest.mark.broad
@pytest.mark.parametrize("clip", [0.0, 0.01, 1e9])
@pytest.mark.parametrize("weights", ["fp64", "bf16"])
def test_the_update_is_the_same_however_many_buckets_at_once(
    weights: str, clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Products are rounded. Otherwise another order of summing squares could change the rounding of a weight.
    monkeypatch.setattr(product, "multiplies_bf16_slowly", lambda: False)
    plan = small(precision={"weights": weights})
    found = []
    for at_once in (0, 5000, 1 << 25):
        with monkeypatch.context() as patch:
            patch.setattr(zero, "together", lambda shards, _, n=at_once: together(shards, n))
            trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule(clip=clip))
        samples = Samples(0, plan.batch.sequences, random_rows(plan))
        steps = [trainer.train_step(n, samples, 1e-2) for n in range(3)]
        masters = torch.cat([shard.master for shard in trainer.optimizer.shards])
        found.append((masters, torch.tensor([(s.loss, s.gradient_norm) for s in steps])))
    one, *others = found
    assert (one[1][:, 1] > 0.01).all()  # so that the second clip clips
    for other in others:
        exact = {"rtol": 1e-12, "atol": 1e-14} if weights == "fp64" else {"rtol": 1e-5, "atol": 1e-6}
        for ours, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(ours, theirs, **exact)


def test_squares_of_many_are_those_of_each() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(n, dtype=torch.float64) for n in (3, 7, 1)]
    expected = sum(float(g.square().sum()) for g in gradients)
    for at_once in (True, False):
        found = squares(gradients, torch.float64, at_once=at_once)
        assert float(found) == pytest.approx(expected, rel=1e-14)
        assert squares([], torch.float64, at_once=at_once) == 0


@pytest.mark.parametrize("at_once", [True, False])
def test_squares_of_narrow_gradients_are_added_up_in_the_dtype_that_is_asked_for(at_once: bool) -> None:
    """Each gradient has 70,000 ones. In bf16 their norm, 264.6, would be 264 or 266."""
    count = 70_000
    ones = [torch.ones(count, dtype=torch.bfloat16) for _ in range(2)]
    for number in (1, 2):
        found = float(squares(ones[:number], torch.float32, at_once=at_once))
        assert found == pytest.approx(number * count, rel=1e-6)


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (2, 2), (1, 2)])
def test_over_tensor_ranks_and_the_ends_of_a_pipeline_every_element_counts_once(tensor: int, pipeline: int) -> None:
    plan = small(tensor=tensor, pipeline=pipeline, data=2, zero=1)
    counted = Counter[str]()
    for rank in range(plan.layout.world_size):
        with pretended(plan.layout, rank) as mesh:
            trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
            for shard in trainer.optimizer.shards:
                for place in places(shard.bucket, shard.bucket.owned, plan, mesh):
                    first = place.first - shard.bucket.owned.start
                    here = range(first, first + place.box.elements)
                    inside = (range(len(shard.master))[where] for where in shard.counted)
                    counted[place.slot.row.name] += sum(n in part for part in inside for n in here)
    assert counted == {p.name: p.elements for p in parameters(plan.model)}


@pytest.mark.parametrize(("weights", "sequences"), [("bf16", 2), ("bf16", 8), ("fp32", 8)])
def test_a_factor_that_stays_on_the_accelerator_gives_the_same_bits(weights: str, sequences: int) -> None:
    """The cases are 16-bit gradients, fp32 gradients of 16-bit weights, and one dtype for all."""
    plan = small(precision={"weights": weights}, batch={"sequences": sequences})
    found = []
    # The factor is a power of two, because a CPU divides fp32 gradients by its reciprocal.
    for factor in (0.25, torch.tensor(0.25, dtype=torch.float64)):
        trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
        trainer.accumulate(0, Samples(0, plan.batch.sequences, random_rows(plan)))
        for shard in trainer.optimizer.shards:
            shard.grad = shard.bucket.reduced()
            narrow = shard.grad.dtype != shard.master.dtype
            assert narrow == (plan.gradient_dtype != plan.precision.masters)
        trainer.optimizer._update(1e-2, factor)
        found.append(torch.cat([shard.master for shard in trainer.optimizer.shards]))
    assert torch.equal(*found)


def test_dividing_fp32_gradients_on_the_way_is_multiplying_them() -> None:
    """CPU training divides; certificates in fp64 and GPUs multiply."""
    plan, found = small(precision={"weights": "fp32"}), []
    for factor in (0.3, torch.tensor(0.3, dtype=torch.float64), 1.0):
        trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
        trainer.accumulate(0, Samples(0, plan.batch.sequences, random_rows(plan)))
        for shard in trainer.optimizer.shards:
            shard.grad = shard.bucket.reduced()
        trainer.optimizer._update(1e-2, factor)
        found.append(torch.cat([part.states["moment1"] for shard in trainer.optimizer.shards for part in shard.parts]))
    divided, multiplied, whole = found
    torch.testing.assert_close(divided, multiplied, rtol=1e-6, atol=0)
    torch.testing.assert_close(divided, 0.3 * whole, rtol=1e-6, atol=0)


def test_the_least_epsilons_of_a_config_leave_what_has_no_gradient_finite() -> None:
    """AdamW divides 0 by epsilon where a row of the table was never read, and a norm where a row is all zeros."""
    with pytest.raises(ValidationError, match="norm_epsilon"):
        small(model={"norm_epsilon": 1e-50})
    with pytest.raises(ValidationError, match="epsilon"):
        TrainingConfig(epsilon=1e-50)
    plan = small(model={"vocabulary": 500, "norm_epsilon": 1e-30})
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=adam_rule(TrainingConfig(epsilon=1e-30)))
    for _ in range(2):
        trainer.train_step(0, Samples(0, 16, random_rows(plan)), 1e-2)
    assert all(bucket.weights.isfinite().all() for bucket in trainer.buckets)


def test_what_goes_along_with_the_norm_is_not_waited_for() -> None:
    with accelerator() as seen:
        mesh = Mesh.single(seen.device)
        optimizer = ShardedOptimizer([], mesh, AdamRule(), torch.float32)
        shares = optimizer._shares((torch.zeros((), device=seen.device),), 1.0, (1, 2, 3))
    assert shares.device == seen.device and seen.copies and not seen.waits
