"""What holds for every optimizer rule: a new file in optim/rules is tested here without a change."""

from pathlib import Path

import pytest
import torch

from plans import EXPERTS, small, swept
from ranks import on_ranks
from training_steps import losses
from trivium.certify.layouts import ROTARY
from trivium.certify.sweep import certify
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.config import build
from trivium.cost.memory import predicted_memory
from trivium.cost.traffic import step_traffic
from trivium.optim.rule import rule_named, rule_names
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.optimizer import Optimizer
from trivium.plan.plan import Plan
from trivium.training.state import restore, save_state
from trivium.training.trainer import Trainer

RULES = rule_names()
OTHERS = [name for name in RULES if name != "adamw"]
LAYOUTS = [
    {},
    {"data": 2, "zero": 0},
    {"tensor": 2, "zero": 1, "sequence_parallel": True},
    {"data": 4, "zero": 1},
    {"data": 2, "zero": 2, "tensor": 2},
    {"data": 2, "zero": 3, "pipeline": 2},
    {"data": 4, "zero": 1, "shards": 2},
    {"data": 2, "zero": 1, "pipeline": 2, "schedule": "zb-h1"},
]
LLAMA = {**ROTARY, "kv_heads": 2, "qk_norm": "each_head", "head": "untied"}


def updated_by(rule: str, **more) -> Plan:
    """A plan whose matrices in layers are updated by a rule, and all else by AdamW."""
    groups = [{"match": "*norm*"}, {"match": "layers.*.weight", "rule": rule}]
    return small(optimizer={"groups": groups}, batch={"sequences": 8, "micro": 1}, **more)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_names_its_states_and_has_settings_with_defaults(name: str) -> None:
    rule = build(rule_named(name), {})
    states = {state.name: torch.zeros(6, dtype=torch.float64) for state in rule.states}
    gradient = torch.randn(6, dtype=torch.float64)
    before = gradient.clone()
    direction = rule.direction(gradient, states, 1)
    assert direction.shape == gradient.shape and torch.equal(before, gradient)
    assert all(x.abs().max() > 0 for x in states.values())
    assert len({x.data_ptr() for x in (direction, gradient, *states.values())}) == 2 + len(states)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("rule", OTHERS)
def test_every_layout_computes_the_update_of_one_process(rule: str, layout: dict) -> None:
    (found,) = certify([updated_by(rule, model=LLAMA, **layout)])
    assert found.passed, (found.worst, found.worst_parameter, found.error)


@pytest.mark.parametrize("rule", OTHERS)
def test_a_rule_updates_models_with_biases_and_a_tied_table(rule: str) -> None:
    (found,) = certify([updated_by(rule)])
    assert found.passed, (found.worst, found.worst_parameter, found.error)


@pytest.mark.broad
@pytest.mark.parametrize("rule", OTHERS)
def test_a_rule_updates_the_experts_that_ranks_divide_and_not_those_that_are_frozen(rule: str) -> None:
    half_frozen = [{"match": "*norm*"}, {"match": "layers.1.mlp.experts.up.*", "trainable": False}]
    groups = [*half_frozen, {"match": "layers.*.weight", "rule": rule}]
    model, batch = {**EXPERTS, "layers": 3}, {"sequences": 8, "micro": 1}
    layouts = ({"zero": 0}, {"zero": 1, "tensor": 2}, {"zero": 2, "data": 4, "shards": 2}, {"zero": 3, "data": 4})
    plans = [updated_by(rule, model=model, **{"data": 2, "expert": 2, **layout}) for layout in layouts]
    plans += [small(data=2, expert=2, zero=z, optimizer={"groups": groups}, model=model, batch=batch) for z in (2, 3)]
    assert [(f.worst_parameter, f.error) for f in certify(plans) if not f.passed] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [pytest.param(8, marks=pytest.mark.broad), pytest.param(2, marks=pytest.mark.slow)])
def test_generated_layouts_agree_under_every_rule_and_with_frozen_parameters(every: int) -> None:
    """Packed documents are excluded: gradients of queries and keys that are 0 in theory would have random signs."""
    frozen = (
        {"match": "embedding.*", "trainable": False},
        {"match": "layers.0.attention.*", "trainable": False},
        {"match": "layers.*.mlp.*", "lr_scale": 2.0},
    )
    by_rule = [({"match": "*norm*"}, {"match": "layers.*.weight", "rule": rule}) for rule in OTHERS]
    choices = [Optimizer(groups=groups) for groups in (frozen, *by_rule)]
    generated = [plan for plan in swept(4) if plan.model.documents == "joined"][::every]
    plans = [p.model_copy(update={"optimizer": choices[n % len(choices)]}) for n, p in enumerate(generated)]
    wrong = [(plan, found) for plan, found in zip(plans, certify(plans), strict=True) if not found.passed]
    assert not wrong


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("rule", OTHERS)
def test_a_rule_updates_padded_tables_at_both_ends_of_a_pipeline(rule: str, head: str) -> None:
    groups = [{"match": "*norm*"}, {"match": "*.weight", "rule": rule}]
    layout = {"tensor": 2, "pipeline": 2, "model": {"layers": 2, "head": head}}
    plan = small(optimizer={"groups": groups}, batch={"sequences": 4, "micro": 1}, **layout)
    assert plan.model.padded_vocabulary(2) > plan.model.vocabulary
    (found,) = certify([plan])
    assert found.passed, (found.worst, found.worst_parameter, found.error)


def counted(place: Place, plan: Plan) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
    losses(trainer, range(1))
    shards = trainer.optimizer.shards
    states = sum(x.nbytes for s in shards for part in s.parts for x in part.states.values())
    masters = sum(s.master.nbytes for s in shards)
    assert predicted_memory(plan)[place.rank]["optimizer"] == states + masters
    moved = step_traffic(plan, mesh.at)
    for role in ("tensor", "replicas"):
        counted = +getattr(mesh, role).traffic
        assert counted == moved[role], (role, counted, moved[role])
    mesh.disconnect()


@pytest.mark.parametrize("layout", [{"data": 2}, {"tensor": 2}, {"data": 2, "tensor": 2}], ids=str)
@pytest.mark.parametrize("rule", OTHERS)
def test_states_and_messages_of_a_rule_are_predicted_to_the_byte(rule: str, layout: dict[str, int]) -> None:
    plan = updated_by(rule, zero=1, precision={"weights": "bf16"}, **layout)
    on_ranks(plan.layout.world_size, counted, plan)


def resumed(place: Place, plan: Plan, path: Path, expected: list[float]) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    trainer = Trainer(plan, mesh, seed=9, rule=AdamRule(), initial=False)
    restore(trainer, Checkpoint.open(path))
    assert losses(trainer, range(2, 4)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rule", OTHERS)
def test_the_states_of_a_rule_come_back_under_another_layout(rule: str, tmp_path: Path) -> None:
    fp64 = {"precision": {"weights": "fp64"}}
    one = Trainer(updated_by(rule, **fp64), Mesh.single(), seed=1, rule=AdamRule())
    losses(one, range(2))
    path = save_state(one, tmp_path, 2)
    kinds = {name.partition("/")[0] for name in Checkpoint.open(path).names if "qkv.weight" in name}
    assert kinds == {"weights", *(state.name for state in rule_named(rule).states)}
    expected = losses(one, range(2, 4))
    on_ranks(2, resumed, updated_by(rule, tensor=2, zero=1, **fp64), path, expected)
    on_ranks(2, resumed, updated_by(rule, data=2, zero=3, **fp64), path, expected)
