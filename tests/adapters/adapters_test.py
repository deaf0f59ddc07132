"""What holds for every kind of adapter: a new file in trivium/adapters is tested here without a change."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from cost.counted_memory import counted as kept
from plans import EXPERTS, brief, small
from ranks import on_ranks
from training_steps import losses
from trivium.certify.layouts import ROTARY
from trivium.certify.reduce import reduced
from trivium.certify.reference import random_rows
from trivium.certify.sweep import certify
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.config import build
from trivium.cost.activations import embedding_bytes, head_bytes, layer_bytes, logits_bytes
from trivium.cost.case import MODES, case_of
from trivium.cost.compute import model_flops
from trivium.cost.hardware import this_machine
from trivium.cost.memory import memory_of_rank, worst_rank
from trivium.errors import ConfigError
from trivium.interchange.names import family_of
from trivium.kernels.cpu import gelu
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.adapters import adapter_kinds, is_added
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import parameters
from trivium.plan.plan import Plan
from trivium.planner.grid import Subject
from trivium.planner.search import search
from trivium.training.state import begin_with, restore, save_state
from trivium.training.trainer import Samples, Trainer

GATED = {**ROTARY, "bias": "none", "kv_heads": 2, "head": "untied"}
MUON = {"groups": [{"match": "*.adapter.[ab]", "rule": "muon", "settings": {"adjust": "match_rms_adamw"}}]}
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"tensor": 2, "data": 2, "zero": 2},
    {"tensor": 2, "sequence_parallel": True, "model": GATED, "row_chunks": 2},
    {"data": 2, "zero": 3, "recompute": {"mode": "layer"}},
    {"pipeline": 2, "schedule": "zb-h1", "recompute": {"mode": "none", "activation_function": True}},
]
MORE: list[dict[str, Any]] = [
    {"pipeline": 2, "chunks": 2, "schedule": "zb-v", "tensor": 2, "sequence_parallel": True},
    {"context": 2, "tensor": 2, "recompute": {"mode": "attention"}},
    {"data": 2, "tensor": 2, "zero": 3, "sequence_parallel": True, "model": GATED},
    {"tensor": 2, "data": 2, "optimizer": MUON, "model": GATED},
    {"tensor": 2, "sequence_parallel": True, "recompute": {"mode": "layer", "activation_function": True}},
]


def adapted(kind: str = "lora", model: dict[str, Any] | None = None, **more: Any) -> Plan:
    """Return a plan in which every linear layer has an adapter, but for one layer without and one with another."""
    groups = [
        {"match": "layers.[03].*", "kind": kind},
        {"match": "layers.2.*", "kind": kind, "settings": {"r": 2, "rslora": True, "dropout": 0.3}},
        {"match": "layers.1.mlp.*", "kind": "lora", "settings": {"r": 3, "alpha": 1.5}},
    ]
    return small(model={"adapters": groups, **(model or {})}, **{"batch": {"sequences": 8, "micro": 1}, **more})


def of_experts(*adapters: dict[str, Any]) -> dict[str, Any]:
    """Return a model of experts, shared ones among them, with adapters beside their matrices too."""
    experts = {**EXPERTS["experts"], "shared_gate": True, "balance_loss": 0.3}
    return {**EXPERTS, "experts": experts, "adapters": [*adapters]}


# The experts of each layer have another kind.
ROUTED = of_experts(
    {"match": "layers.[01].*", "settings": {"r": 3, "rslora": True}},
    {"match": "layers.2.mlp.*", "kind": "dora", "settings": {"r": 3}},
    {"match": "*.mlp.*", "kind": "lora_ggpo", "settings": {"sigma": 0.3, "beta": 1.0}},
)
OF_EXPERTS: list[dict[str, Any]] = [
    {"tensor": 2, "sequence_parallel": True, "recompute": {"mode": "layer"}},
    {"data": 2, "expert": 2, "zero": 3},
    {"pipeline": 2, "schedule": "zb-h1"},
]
MORE_OF_EXPERTS: list[dict[str, Any]] = [
    {"data": 2, "expert": 2, "tensor": 2, "zero": 2, "recompute": {"mode": "none", "activation_function": True}},
    {"context": 2, "expert": 2, "tensor": 2, "sequence_parallel": True, "optimizer": MUON},
    {"pipeline": 2, "chunks": 2, "schedule": "zb-v", "data": 2, "expert": 2, "zero": 1},
    {"data": 4, "expert": 4, "zero": 3, "shards": 4, "recompute": {"mode": "attention"}},
]
KINDS = [pytest.param(kind, marks=[pytest.mark.broad] * (kind != "lora")) for kind in adapter_kinds()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_computes_adapters_as_one_process_does(kind: str) -> None:
    found = certify([brief(adapted(kind, **layout)) for layout in LAYOUTS])
    assert all(each.passed for each in found), [(each.worst, each.worst_parameter, each.error) for each in found]


@pytest.mark.broad
def test_every_layout_computes_the_adapters_of_experts_as_one_process_does() -> None:
    found = certify([brief(small(model=ROUTED, **layout)) for layout in OF_EXPERTS])
    assert all(each.passed for each in found), [(each.worst, each.worst_parameter, each.error) for each in found]


@pytest.mark.broad
def test_further_layouts_compute_the_adapters_of_experts_as_one_process_does() -> None:
    found = certify([brief(small(model=ROUTED, **layout)) for layout in MORE_OF_EXPERTS])
    assert all(each.passed for each in found), [(each.worst, each.worst_parameter, each.error) for each in found]


@pytest.mark.broad
def test_further_layouts_compute_adapters_as_one_process_does() -> None:
    kinds = itertools.cycle(adapter_kinds())
    found = certify([brief(adapted(next(kinds), **layout)) for layout in MORE])
    assert all(each.passed for each in found), [(each.worst, each.worst_parameter, each.error) for each in found]


@pytest.mark.parametrize("kind", adapter_kinds())
def test_adapted_model_begins_as_the_model_itself_bit_for_bit(kind: str) -> None:
    for with_adapters in (adapted(kind), small(model=of_experts({"kind": kind}))):
        without = with_adapters.model_copy(update={"model": with_adapters.model.model_copy(update={"adapters": ()})})
        trainers = [Trainer(plan, Mesh.single(), seed=1, rule=AdamRule()) for plan in (with_adapters, without)]
        first, second = (losses(trainer, range(1)) for trainer in trainers)
        assert first == second


@pytest.mark.parametrize("kind", adapter_kinds())
def test_all_but_adapters_is_frozen(kind: str) -> None:
    plan = adapted(kind, zero=2, precision={"weights": "bf16"})
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    added = {row.name for row in parameters(plan.model) if is_added(row) and row.trainable}
    assert added == {row.name for row in parameters(plan.model) if plan.optimizer.trains(row)}
    before = {n: p.detach().clone() for n, p in trainer.stages[0].named_parameters()}
    for step in range(2):
        trainer.train_step(step, Samples(step * 8, 8, random_rows(plan)), 1e-2)
    for name, parameter in trainer.stages[0].named_parameters():
        assert parameter.requires_grad == (name in added), name
        changes = ".adapter." in name
        assert changes != torch.equal(before[name], parameter), name
        assert parameter.grad is None
    assert {slot.row.name for shard in trainer.optimizer.shards for slot in shard.bucket.slots} == added


def counted(place: Place, plans: list[Plan]) -> None:
    for plan in plans:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
        trainer.train_step(0, Samples(0, 8, random_rows(plan)), 1e-2)
        shards = trainer.optimizer.shards
        states = sum(x.nbytes for s in shards for part in s.parts for x in part.states.values())
        found = {
            "weights": sum((b.shard if plan.zero == 3 else b.weights).nbytes for b in trainer.buckets),
            "gradients": sum(b.gradients.nbytes for b in trainer.trained),
            "optimizer": states + sum(s.master.nbytes for s in shards),
        }
        predicted = memory_of_rank(plan, mesh.at).categories()
        assert found == {k: predicted[k] for k in found}, (plan.layout, plan.zero)
        mesh.disconnect()


def test_what_a_rank_holds_of_adapters_is_what_is_predicted() -> None:
    bf16 = {"precision": {"weights": "bf16"}}
    plans = [adapted(data=2, zero=1, **bf16), adapted("dora", data=2, zero=3, **bf16)]
    routed = small(model=ROUTED, data=2, expert=2, zero=2, **bf16)
    on_ranks(2, counted, [*plans, routed, adapted("lora_ggpo", tensor=2, **bf16)])


@pytest.mark.parametrize("kind", adapter_kinds())
def test_adapters_keep_for_the_backward_what_is_predicted(kind: str) -> None:
    """To the byte, where every linear layer has one."""
    every = {"adapters": [{"kind": kind, "settings": {"r": 3, "dropout": 0.1}}]}
    routed = {**of_experts({"kind": kind, "settings": {"r": 3}}), "first": []}
    routed["experts"] = {**routed["experts"], "imbalance": 1.0}
    splits: list[dict[str, Any]] = [{}, {"tensor": 2}, {"tensor": 2, "sequence_parallel": True}]
    both = {"tensor": 2, "data": 2, "expert": 2}
    for model, split in (*itertools.product([every, routed], splits), (routed, both)):
        plan = small(model=model, precision={"weights": "bf16"}, **split)
        case, modes = case_of(plan), [MODES[plan.recompute.mode_of(n)] for n in range(plan.model.layers)]
        layers = sum(float(layer_bytes(case, mode)) for mode in modes)
        assert kept(plan, 0, "with memory").bytes == layers + embedding_bytes(case) + head_bytes(case) + logits_bytes(
            case
        )


def test_base_and_adapter_both_compute_the_activation_function_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a large GELU may be written in place of what it read, which the other product reads too."""
    monkeypatch.setattr(gelu, "MIN_ELEMENTS", 1)
    wide = {"model": {"activation": "gelu_tanh"}, "precision": {"weights": "fp64"}}
    again, kept = adapted(**wide, recompute={"activation_function": True}), adapted(**wide)
    assert again.model.feed_forward == "plain"
    both = [Trainer(plan, Mesh.single(), seed=1, rule=AdamRule()) for plan in (again, kept)]
    first, second = (losses(trainer, range(3)) for trainer in both)
    assert first == pytest.approx(second, rel=1e-12)


def test_a_search_prices_and_keeps_adapters() -> None:
    plan, machine = adapted(model={"hidden": 192}), this_machine(2, 8 << 30)
    whole = plan.model_copy(update={"model": plan.model.model_copy(update={"adapters": ()})})
    found, without = (search(Subject.of(p), machine, 2) for p in (plan, whole))
    assert found.ranking.winners(1)[0].plan.model == plan.model
    assert (found.ranking.priced.memory_bytes < without.ranking.priced.memory_bytes).all()
    least, most = worst_rank(plan)[1], worst_rank(whole)[1]
    assert least.moments < most.moments and least.weights > most.weights


def test_backward_of_frozen_weights_has_half_the_products() -> None:
    plan = small(model={"adapters": [{"match": "layers.*", "settings": {"r": 1}}]})
    tokens = plan.model.sequence
    frozen, whole = (model_flops(m, 1) for m in (plan.model, plan.model.model_copy(update={"adapters": ()})))
    rows = [row for row in parameters(plan.model) if is_added(row)]
    added = 2.0 * tokens * sum(row.elements for row in rows)
    assert frozen.forward == pytest.approx(whole.forward + added)
    scores = 2 * 2.0 * tokens * plan.model.sequence * plan.model.hidden * plan.model.layers
    assert frozen.backward == pytest.approx(whole.forward + scores + 2 * added)


def resumed(place: Place, plans: list[Plan], path: Path, expected: list[float]) -> None:
    for plan in plans:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        trainer = Trainer(plan, mesh, seed=1, rule=AdamRule(), initial=False)
        restore(trainer, Checkpoint.open(path))
        assert losses(trainer, range(2, 4)) == pytest.approx(expected, rel=1e-12)
        mesh.disconnect()


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_with_adapters_resumes_in_another_layout(kind: str, tmp_path: Path) -> None:
    fp64 = {"precision": {"weights": "fp64"}}
    one = Trainer(adapted(kind, **fp64), Mesh.single(), seed=1, rule=AdamRule())
    losses(one, range(2))
    path = save_state(one, tmp_path, 2)
    names = set(Checkpoint.open(path).names)
    assert "weights/layers.0.mlp.up.weight" in names and "moment1/layers.0.mlp.up.weight" not in names
    plans = [
        adapted(kind, tensor=2, sequence_parallel=True, **fp64),
        adapted(kind, data=2, zero=3, **fp64),
        adapted(kind, pipeline=2, **fp64),
    ]
    on_ranks(2, resumed, plans, path, losses(one, range(2, 4)))


def test_a_checkpoint_with_adapters_of_experts_resumes_with_other_expert_ranks(tmp_path: Path) -> None:
    fp64 = {"precision": {"weights": "fp64"}, "model": ROUTED, "batch": {"sequences": 8, "micro": 1}}
    one = Trainer(small(**fp64), Mesh.single(), seed=1, rule=AdamRule())
    losses(one, range(2))
    path = save_state(one, tmp_path, 2)
    plans = [small(data=2, expert=2, zero=3, **fp64), small(tensor=2, **fp64)]
    on_ranks(2, resumed, plans, path, losses(one, range(2, 4)))


def test_adapters_begin_beside_the_weights_of_a_model_without_any(tmp_path: Path) -> None:
    plan = adapted()
    without = plan.model_copy(update={"model": plan.model.model_copy(update={"adapters": ()})})
    base = Trainer(without, Mesh.single(), seed=1, rule=AdamRule())
    losses(base, range(2))
    path = save_state(base, tmp_path, 2)
    trainer, fresh = (Trainer(plan, Mesh.single(), seed=9, rule=AdamRule()) for _ in range(2))
    begin_with(trainer, Checkpoint.open(path))
    given = dict(base.stages[0].named_parameters())
    for name, parameter in fresh.stages[0].named_parameters():
        expected = given.get(name, parameter)
        assert torch.equal(trainer.stages[0].get_parameter(name), expected), name


@pytest.mark.parametrize(
    ("group", "told"),
    [
        ({"kind": "high_rank"}, r"plan.model.adapters.0.*kinds of adapter.*'high_rank' is none of them"),
        ({"settings": {"r": 0}}, r"plan.model.adapters.0.*r is 0"),
        ({"settings": {"depth": 2}}, r"plan.model.adapters.0.*depth"),
        (
            {"kind": "dora", "settings": {"dropout": 0.1}},
            r"adapters.0 takes layers.1.mlp.experts.up with dropout 0.1, and adapters beside matrices of experts have",
        ),
        ({"match": "*.norm"}, r"plan.model.adapters.0.match is '\*.norm', and no linear layer has such a name"),
    ],
    ids=str,
)
def test_adapters_that_contradict_the_model_are_refused(group: dict[str, Any], told: str) -> None:
    tree = small(model=EXPERTS).model_dump()
    tree["model"]["adapters"] = [group]
    with pytest.raises(ConfigError, match=told.removeprefix("plan.")):
        build(Plan, tree).checked()


def test_adapters_of_layers_that_a_reduced_model_lacks_are_left_out() -> None:
    plan = small(model={"layers": 8, "adapters": [{"match": "layers.0.*"}, {"match": "layers.7.*"}]})
    few = reduced(plan)
    assert few.model.layers < 8 and few.model.adapters == plan.model.adapters[:1]


def test_a_model_with_adapters_is_not_exported() -> None:
    model: ModelShape = adapted().model
    with pytest.raises(ConfigError, match="plan.model.adapters has 3 groups"):
        family_of(model)
