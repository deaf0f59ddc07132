"""Groups of parameters: which rule updates what, which parameters are frozen, and that every layout agrees."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from plans import small
from ranks import on_ranks
from training_steps import losses
from trivium.certify.layouts import ROTARY
from trivium.certify.reduce import reduced
from trivium.certify.reference import random_rows
from trivium.certify.sweep import certify
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.cost.hardware import this_machine
from trivium.cost.memory import memory_of_rank, predicted_memory, worst_rank
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.optimizer import Optimizer
from trivium.plan.parameters import parameters
from trivium.plan.plan import Plan
from trivium.planner.grid import Subject
from trivium.planner.leaner import memory_bytes
from trivium.planner.search import search
from trivium.training.state import restore, save_state
from trivium.training.trainer import Samples, Trainer

FP64 = {"weights": "fp64"}
# The embedding and the first two layers are frozen, biases learn faster, and one layer has another decay.
FROZEN = {
    "groups": [
        {"match": "embedding.*", "trainable": False},
        {"match": "layers.[01].*", "trainable": False},
        {"match": "*.bias", "lr_scale": 2.0},
        {"match": "layers.3.*", "weight_decay": 0.5, "settings": {"beta2": 0.9}},
    ]
}
LAYOUTS = [
    {"data": 2, "zero": 0},
    {"data": 2, "zero": 1, "tensor": 2, "sequence_parallel": True},
    {"data": 2, "zero": 2, "pipeline": 2},
    {"data": 2, "zero": 3, "tensor": 2},
    {"pipeline": 2, "schedule": "zb-h1"},
    {"data": 2, "zero": 3, "recompute": {"mode": "layer"}},
    {"pipeline": 2, "chunks": 2, "schedule": "zb-v", "data": 2, "zero": 1},
]


def frozen(**more) -> Plan:
    return small(optimizer=FROZEN, batch={"sequences": 8, "micro": 1}, **more)


@pytest.mark.parametrize("plan", [{}, {"model": {"head": "untied", **ROTARY, "bias": "qkv"}}, *LAYOUTS], ids=str)
def test_a_plan_with_frozen_parameters_and_groups_computes_what_one_process_does(plan: dict) -> None:
    (found,) = certify([frozen(**plan)])
    assert found.passed, (found.worst, found.worst_parameter, found.error)


def test_plans_with_settings_of_rules_are_hashed_and_compared() -> None:
    one, same = (small(optimizer={"groups": [{"settings": {"beta1": 0.5}}]}) for _ in range(2))
    assert len({one, same, small()}) == 2


def test_frozen_parameters_have_weights_and_nothing_else() -> None:
    plan = frozen(zero=2, precision={"weights": "bf16"})
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    rows = {row.name: row for row in parameters(plan.model)}
    before = {n: p.detach().clone() for n, p in trainer.stages[0].named_parameters()}
    run = trainer.train_step(0, Samples(0, 8, random_rows(plan)), 1e-2)
    assert run.gradient_norm > 0
    for name, parameter in trainer.stages[0].named_parameters():
        is_frozen = not plan.optimizer.trains(rows[name])
        assert torch.equal(before[name], parameter) == is_frozen, name
        assert parameter.requires_grad != is_frozen
        assert parameter.grad is None
    held = {slot.row.name for shard in trainer.optimizer.shards for slot in shard.bucket.slots}
    assert held == {name for name in before if plan.optimizer.trains(rows[name])}


def in_ranks(does: Callable[..., None], cases: Sequence[tuple[Any, ...]]) -> None:
    """`does(place, plan, ...)` for each case; those of as many ranks share a start of them."""
    for size in sorted({plan.layout.world_size for plan, *_ in cases}):
        on_ranks(size, one_by_one, does, [case for case in cases if case[0].layout.world_size == size])


def one_by_one(place: Place, does: Callable[..., None], cases: Sequence[tuple[Any, ...]]) -> None:
    for case in cases:
        does(place, *case)


def counted(place: Place, plan: Plan) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
    trainer.train_step(0, Samples(0, 8, random_rows(plan)), 1e-2)
    shards = trainer.optimizer.shards
    states = [x.nbytes for s in shards for part in s.parts for x in part.states.values()]
    masters = [s.master.nbytes for s in shards] if plan.precision.has_master else []
    found = {
        "weights": sum((b.shard if plan.zero == 3 else b.weights).nbytes for b in trainer.buckets),
        "gradients": sum(b.gradients.nbytes for b in trainer.trained),
        "optimizer": sum(states) + sum(masters),
    }
    predicted = memory_of_rank(plan, mesh.at).categories()
    assert found == {k: predicted[k] for k in found}, (plan.layout, plan.zero)
    assert predicted_memory(plan)[place.rank] == predicted
    mesh.disconnect()


def test_what_a_rank_holds_of_groups_is_what_is_predicted() -> None:
    plans = [frozen(data=2, zero=zero, precision={"weights": "bf16"}) for zero in range(4)]
    in_ranks(counted, [(plan,) for plan in plans])
    whole, part = (worst_rank(small(data=2, zero=1, **more))[1] for more in ({}, {"optimizer": FROZEN}))
    assert part.moments < whole.moments and part.gradients < whole.gradients and part.weights == whole.weights


def resumed(place: Place, plan: Plan, path: Path, expected: list[float]) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    trainer = Trainer(plan, mesh, seed=9, rule=AdamRule(), initial=False)
    restore(trainer, Checkpoint.open(path))
    assert losses(trainer, range(2, 4)) == pytest.approx(expected, rel=1e-12)


def test_frozen_weights_are_saved_and_come_back_under_any_layout(tmp_path: Path) -> None:
    one = Trainer(frozen(precision=FP64), Mesh.single(), seed=1, rule=AdamRule())
    losses(one, range(2))
    path = save_state(one, tmp_path, 2)
    names = set(Checkpoint.open(path).names)
    assert "weights/embedding.tokens.weight" in names and "moment1/embedding.tokens.weight" not in names
    expected = losses(one, range(2, 4))
    in_ranks(resumed, [(frozen(precision=FP64, **layout), path, expected) for layout in LAYOUTS[:4]])


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ([{"match": "norms.*"}], r"groups.0.match is 'norms.\*', and no parameter has such a name"),
        ([{}, {"match": "*.bias"}], "groups.1.match is .*that no group before it takes"),
        ([{"rule": "adam"}], "groups.0.rule: the rules are .*adamw.*'adam' is none of them"),
        ([{"settings": {"beta3": 0.5}}], "groups.0.settings: .*beta3"),
        ([{"settings": {"beta1": 1.5}}], "groups.0.settings: .*beta1.*1.5"),
        ([{"trainable": False}], "freezes every parameter; set trainable=true"),
    ],
    ids=str,
)
def test_groups_that_contradict_the_model_are_refused(groups: list[dict], told: str) -> None:
    plan = small().model_copy(update={"optimizer": Optimizer(groups=groups)})
    (problem,) = plan.check()
    assert re.search(told, problem), problem


def test_groups_of_layers_that_a_reduced_model_lacks_are_left_out() -> None:
    groups = {"groups": [{"match": "layers.[01].*", "trainable": False}, {"match": "layers.3.*", "lr_scale": 2.0}]}
    plan = small(model={"layers": 8}, optimizer=groups)
    few = reduced(plan)
    assert few.model.layers < 4 and few.check() == []
    assert few.optimizer.groups == plan.optimizer.groups[:1]


def test_a_search_prices_and_keeps_the_groups_of_a_plan() -> None:
    half = {"groups": [{"match": "layers.[01].*", "trainable": False}, {"match": "layers.*", "weight_decay": 0.2}]}
    plan, machine = small(optimizer=half), this_machine(2, 8 << 30)
    found, without = (search(Subject.of(p), machine, 2) for p in (plan, small()))
    assert found.ranking.winners(1)[0].plan.optimizer == plan.optimizer
    held, more = (memory_bytes(each.enumerated.candidates) for each in (found, without))
    assert (held < more).all()
