"""The update in one pass equals torch's fused AdamW on gradients that were clipped and upcast before."""

import shutil
from functools import partial

import pytest
import torch
from torch.optim.adamw import adamw

from plans import small
from trivium.certify.reference import random_rows
from trivium.comms.mesh import Mesh
from trivium.kernels.adamw import SHARDS_PER_LAUNCH, Amount, State, compiled_update, numbers_of, update_
from trivium.optim.rules.adamw import AdamW
from trivium.parallel.sharding.zero import AdamRule, ShardedOptimizer, in_calls
from trivium.plan.buckets import ALIGNMENT_ELEMENTS, bucket_table
from trivium.training.trainer import Samples, Trainer

RULE, DECAY = AdamW(beta1=0.8, beta2=0.99, epsilon=1e-6), 0.3
LR = 1e-2
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@pytest.mark.parametrize("decayed", [0, 37, 101])
@pytest.mark.parametrize("step", [1, 2, 1000])
def test_the_state_is_that_of_torchs_adamw(decayed: int, step: int) -> None:
    torch.manual_seed(0)
    size, factor, lr = 101, 0.3, 1e-2
    master, moment1, grad = (torch.randn(size, dtype=torch.float64) for _ in range(3))
    moment2 = torch.rand(size, dtype=torch.float64)
    weights = torch.zeros(size, dtype=torch.bfloat16)
    state = State(master.clone(), moment1.clone(), moment2.clone(), weights)
    numbers = torch.tensor(numbers_of(RULE, Amount(lr, DECAY, step)), dtype=torch.float64)
    update_(state, grad.clone(), torch.tensor(factor), numbers, torch.tensor(decayed))
    for where, decay in ((slice(0, decayed), DECAY), (slice(decayed, size), 0.0)):
        adamw(
            [master[where]],
            [grad[where] * torch.tensor(factor).double()],
            [moment1[where]],
            [moment2[where]],
            [],
            [torch.tensor(step - 1.0)],
            foreach=False,
            amsgrad=False,
            beta1=RULE.beta1,
            beta2=RULE.beta2,
            lr=lr,
            weight_decay=decay,
            eps=RULE.epsilon,
            maximize=False,
        )
    for ours, theirs in zip(state, (master, moment1, moment2), strict=False):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-14)
    assert torch.equal(weights, state.master.to(weights.dtype))


@pytest.mark.parametrize(("weights", "sequences"), [("bf16", 2), ("bf16", 8), ("fp64", 8)])
@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_a_training_is_that_of_the_passes_one_by_one(
    weights: str, sequences: int, clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cases are 16-bit gradients, fp32 gradients of 16-bit weights, and one dtype for all."""
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    plan = small(precision={"weights": weights}, batch={"sequences": sequences})
    masters = []
    for compiled in (False, True):
        trainer, rule = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule()), AdamRule(clip=clip)
        dtype = trainer.optimizer.shards[0].master.dtype
        trainer.optimizer = ShardedOptimizer(trainer.buckets, trainer.mesh, rule, dtype, compiled=compiled)
        # 16-bit weights are rounded, which in later steps enlarges small differences.
        for step in range(3 if weights == "fp64" else 1):
            trainer.train_step(step, Samples(0, plan.batch.sequences, random_rows(plan)), LR)
        masters.append(torch.cat([shard.master for shard in trainer.optimizer.shards]))
        for shard in trainer.optimizer.shards:
            assert torch.equal(shard.bucket.shard, shard.master.to(shard.bucket.shard.dtype))
    # AdamW divides by the size of the gradient, so the rounding error of a very small one shows.
    tolerance = 1e-9 if weights == "fp64" else 1e-3
    torch.testing.assert_close(*masters, rtol=1e-2 * tolerance, atol=tolerance * LR)


@pytest.mark.broad
@needs_compiler
def test_compiled_it_is_one_function_for_as_many_slices_of_any_lengths() -> None:
    """This includes lengths that were equal when it was compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # other tests have compiled functions
    update, found = compiled_update(), []
    lengths = [(40, 40), (24, 1000), (16, 16), (24,), (1000, 24), (1000,)]
    for sizes in lengths:
        for compiled in (True, False):
            torch.manual_seed(sum(sizes))
            rand = partial(map, torch.rand)
            states = [State(*rand([n] * 3), torch.zeros(n, dtype=torch.bfloat16)) for n in sizes]
            grads = [x.bfloat16() for x in rand(sizes)]
            numbers = torch.tensor(numbers_of(RULE, Amount(1e-2, DECAY, 7)))
            with torch.no_grad():
                if compiled:
                    update(states, grads, torch.tensor(0.5), numbers, [torch.tensor(n // 3) for n in sizes])
                for state, grad, n in () if compiled else zip(states, grads, sizes, strict=True):
                    update_(state, grad, torch.tensor(0.5), numbers, torch.tensor(n // 3))
            found.append(states)
    for ours, theirs in zip(found[::2], found[1::2], strict=True):
        for state, expected in zip(ours, theirs, strict=True):
            for name, a, b in zip(State._fields, state, expected, strict=True):
                torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("count", [1, SHARDS_PER_LAUNCH - 1, SHARDS_PER_LAUNCH, 3 * SHARDS_PER_LAUNCH + 2])
def test_calls_are_of_several_slices_or_of_one(count: int) -> None:
    calls = in_calls(list(range(count)))
    assert [n for call in calls for n in call] == list(range(count))
    assert {len(call) for call in calls} <= {1, SHARDS_PER_LAUNCH}
    assert len(calls) == count // SHARDS_PER_LAUNCH + count % SHARDS_PER_LAUNCH


@pytest.mark.parametrize("data", [2, 3, 7])
def test_slices_begin_where_a_compiled_kernel_may_read_sixteen_bytes(data: int) -> None:
    """At other addresses it would copy them first."""
    plan = small(data=data, zero=1, batch={"sequences": 2 * data})
    for row in bucket_table(plan, 0):
        assert row.padded // data % ALIGNMENT_ELEMENTS == 0 and row.padded % data == 0
        assert 0 <= row.padded - sum(item.room for item in row.items) < data * ALIGNMENT_ELEMENTS


def test_parameters_begin_where_a_kernel_compiled_for_one_layer_may_read_those_of_all() -> None:
    """Such a kernel reads sixteen bytes at a time where the first layer's addresses allow it, and checks no others."""
    plan = small(model={"hidden": 20, "ffn": 34, "vocabulary": 5})
    assert any(item.elements % ALIGNMENT_ELEMENTS for row in bucket_table(plan, 0) for item in row.items)
    trainer = Trainer(plan, Mesh.single(), seed=0, rule=AdamRule())
    for bucket in trainer.buckets:
        starts = [slot.start for slot in bucket.slots]
        assert starts == sorted(starts) and all(start % ALIGNMENT_ELEMENTS == 0 for start in starts)
        assert all(slot.stop <= after for slot, after in zip(bucket.slots, [*starts[1:], bucket.padded]))
        assert all(after - slot.stop < ALIGNMENT_ELEMENTS for slot, after in zip(bucket.slots, starts[1:]))
