"""Predicted bytes are those that a rank counts: state and peak of saved activations, on every rank, to the byte."""

from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from plans import small, swept
from ranks import on_ranks
from trivium.certify.layouts import ROTARY
from trivium.certify.random_plans import random_plans
from trivium.certify.reference import random_rows
from trivium.certify.ways import Replaced, replaced
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.cost.activations import head_bytes, logits_bytes
from trivium.cost.case import case_of
from trivium.cost.memory import memory_of_rank
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision
from trivium.plan.schedule import SPLIT_SCHEDULES
from trivium.training import batches
from trivium.training.batches import Rows
from trivium.training.trainer import Samples, Trainer

DTYPES = ("fp32", "bf16", "fp64")
LARGEST, LARGEST_IN_BUDGET = 8, 4  # ranks of a layout
RANDOM = 15  # plans
GIVEN = ["F0.0 F1.0 B1.0 B0.0", "F0.1 B0.1 F1.1 B1.1"]
QWEN3 = {**ROTARY, "kv_heads": 2, "head_width": 8, "qk_norm": "each_head"}
WINDOW = {"window": 3, "first": [{"times": 1, "window": None}], "pattern": [{"times": 1}, {"window": None}]}
OLMO2 = {**ROTARY, "kv_heads": 2, "head_width": 8, "qk_norm": "all_heads", "norm_position": "after"}
MORE = [
    small(pipeline=2, schedule="given", rows=GIVEN, batch={"sequences": 4}),
    small(precision={"weights": "bf16", "gradients": "bf16"}),
    small(data=2, precision={"weights": "bf16", "communication": "bf16"}),
    small(tensor=2, model={**ROTARY, "heads": 2, "head": "untied"}, batch={"micro": 1}),
    small(context=2, model={"heads": 1}, batch={"micro": 1}),
    small(tensor=2, model={**ROTARY, "heads": 2}, row_chunks=2),
    small(tensor=2, sequence_parallel=True, overlap_tensor=True, recompute={"mode": "layer", "every": 2}),
    small(model={**QWEN3, "kv_heads": None}, precision={"weights": "bf16"}),
    small(tensor=2, model={**QWEN3, "bias": "qkv"}, recompute={"mode": "attention"}),
    small(context=2, model=QWEN3, precision={"weights": "bf16"}),
    small(context=2, model=QWEN3, context_attention="ulysses"),
    small(tensor=2, model=OLMO2, precision={"weights": "bf16"}, recompute={"mode": "layer"}),
    small(tensor=2, model={**OLMO2, "kv_heads": None, "dropout": 0.1}, sequence_parallel=True),
    small(precision={"weights": "bf16"}, recompute={"mode": "layer", "activation_function": True}),
    small(model=WINDOW),
    small(model={**QWEN3, **WINDOW}, precision={"weights": "bf16"}),
    small(tensor=2, model={**QWEN3, **WINDOW, "documents": "apart"}),
    small(context=2, model=WINDOW),
    small(pipeline=2, chunks=2, schedule="zb-turns", precision={"weights": "bf16"}),
    small(pipeline=4, chunks=2, schedule="zb-turns", model={"layers": 8}, batch={"sequences": 4}),
    small(pipeline=2, data=2, chunks=2, schedule="zb-turns", zero=3, model={"head": "untied"}),
    small(context=2, context_attention="ulysses", model={**QWEN3, **WINDOW}),
]


@cache
def covering_sample(max_ranks: int, every: int = 1) -> dict[int, list[Plan]]:
    """The generated layouts, of which each `every`-th, and random ones by world size, their dtypes in turn, and what
    neither chooses."""
    found = defaultdict[int, list[Plan]](list)
    for number, plan in enumerate([*swept(max_ranks)[::every], *random_plans(RANDOM, max_ranks, seed=1)]):
        precision = Precision(weights=DTYPES[number % len(DTYPES)])
        found[plan.layout.world_size].append(plan.model_copy(update={"precision": precision}))
    for plan in MORE:
        found[plan.layout.world_size].append(plan)
    return found


def counted(trainer: Trainer) -> dict[str, int]:
    """After a step: bytes of the tensors that hold the state, and the most that was saved at once."""
    read = random_rows(trainer.plan)
    step = Samples(0, trainer.plan.batch.sequences, read)
    run = trainer.train_step(0, step, 1e-3, measure=True).run
    buckets, shards = trainer.buckets, trainer.optimizer.shards
    here, away = (sum(x.nbytes for s in shards if s.is_on_host is there for x in s.state) for there in (False, True))
    return {
        "weights": sum((b.shard if trainer.plan.zero == 3 else b.weights).nbytes for b in buckets),
        "gradients": sum(b.gradients.nbytes for b in trainer.trained),
        "optimizer": here,
        "activations": run.peak_saved_bytes,
        **({"host": away + run.peak_host_bytes} if away + run.peak_host_bytes else {}),
    }


def check(place: Place, plans: list[Plan]) -> None:
    for plan in plans:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        # Where few targets count, the losses of the others are not computed, and less is kept than is predicted.
        with replaced((Replaced(batches, "SPARSE_SHARE", 0.0),)):
            found = counted(Trainer(plan, mesh, seed=1, rule=AdamRule()))
        predicted = memory_of_rank(plan, mesh.at).categories()
        # Adapters of these plans differ by layer: tests/adapters has equal ones, to the byte. How many rows arrive at
        # the experts of a rank depends on the tokens: tests/cost/experts_test.py has an even load, to the byte. Where
        # some layers have experts and others have not, the mean counts, which is exact if all are treated alike.
        mixed = plan.model.expert_counts and len(plan.model.counted_layers) > 1
        unlike = mixed and (plan.recompute.every > 1 or plan.layout.chunks > 1)
        loose = {"activations", "host"} if plan.model.adapters or plan.layout.expert > 1 or unlike else set[str]()
        # What the host keeps for deferred weight gradients is an upper bound.
        if plan.offload.activations and plan.schedule in (*SPLIT_SCHEDULES, "given"):
            assert "host" in loose or found["host"] <= predicted["host"], plan
            loose.add("host")
        predicted |= {name: found[name] for name in loose & found.keys()}
        assert found == predicted, f"rank {place.rank} counted {found}, predicted {predicted}: {plan}"
        mesh.disconnect()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("counts", [1, 2, 5])
def test_where_few_targets_count_head_and_loss_hold_those_alone(counts: int, dtype: str) -> None:
    """Whoever tunes a model on short answers holds less than the prediction, which counts every target."""
    plan = small(precision={"weights": dtype})
    batch, length = plan.batch, plan.model.sequence
    weights = np.zeros((batch.sequences, length + 1), np.float32)
    weights[:, 1 : counts + 1] = 1
    rows = Rows.of_text(np.random.default_rng(0).integers(0, 9, weights.shape), weights)
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    step = Samples(0, batch.sequences, lambda first, n: rows.part(first, first + n))
    found = trainer.train_step(0, step, 1e-3, measure=True).run.peak_saved_bytes
    case = case_of(plan)
    per_target = (head_bytes(case) + logits_bytes(case)) / (batch.micro * length)
    places = 8 * batch.micro * counts  # bytes, of the counted targets' places
    left_out = batch.micro * (length - counts)
    predicted = memory_of_rank(plan, Mesh.single().at).activations
    assert found == predicted - left_out * per_target + places < predicted


@pytest.mark.parametrize(
    "ranks", (1, *(pytest.param(n, marks=pytest.mark.broad) for n in range(2, LARGEST_IN_BUDGET + 1)))
)
def test_every_rank_holds_what_was_predicted(ranks: int) -> None:
    on_ranks(ranks, check, covering_sample(LARGEST_IN_BUDGET, every=4)[ranks])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", range(1, LARGEST + 1))
def test_every_rank_of_every_layout_holds_what_was_predicted(ranks: int) -> None:
    on_ranks(ranks, check, covering_sample(LARGEST)[ranks])
