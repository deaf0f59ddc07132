"""Offload: a rank computes the same bits wherever its state and activations are, and holds the predicted bytes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from plans import EXPERTS, small
from ranks import on_ranks
from trivium.certify.layouts import ROTARY
from trivium.certify.reference import random_rows
from trivium.certify.ways import Replaced, replaced
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.cost.memory import memory_of_rank
from trivium.parallel.pipeline.executor import Run
from trivium.parallel.sharding import shard
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan import buckets
from trivium.plan.offload import Offload
from trivium.plan.plan import Plan
from trivium.training.state import restore, save_state
from trivium.training.trainer import Samples, Trainer

BF16 = {"weights": "bf16"}
LION_AND_MUON = {
    "groups": [{"match": "*.norm.*"}, {"match": "*.qkv.weight", "rule": "muon"}, {"match": "*.up.*", "rule": "lion"}]
}
# Several buckets and pieces of small models, whose boundaries divide the groups of parameters.
SMALL = (
    Replaced(buckets, "LONE_BUCKET_ELEMENTS", 1 << 11),
    Replaced(buckets, "BUCKET_ELEMENTS", 1 << 11),
    Replaced(shard, "PIECE_ELEMENTS", 1 << 9),
)
STEPS = 3


def trained(plan: Plan, mesh: Mesh) -> tuple[list[Any], Trainer, Run]:
    """Train, and return every number that a step gives: loss, norm, gradients, and in the end weights and state."""
    trainer, found = Trainer(plan, mesh, seed=1, rule=AdamRule()), list[Any]()
    trainer.optimizer.on_reduced = lambda number, gradient: found.append(gradient.clone())
    for step in range(STEPS):
        batch = Samples(step, plan.batch.sequences, random_rows(plan))
        result = trainer.train_step(step, batch, 1e-2, measure=True)
        found += [result.loss, result.gradient_norm]
    for held in trainer.optimizer.shards:
        found += [held.bucket.shard, *held.state]
    return found, trainer, result.run


def same(a: list[Any], b: list[Any]) -> bool:
    """Whether all numbers have the same bits."""
    alike = (torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a, b, strict=True))
    return all(alike)


def tiny(**more: Any) -> Plan:
    """Return a plan of few micro-batches."""
    return small(**{**more, "batch": {"sequences": 8, **more.get("batch", {})}})


def with_offload(plan: Plan, **shares: float) -> Plan:
    return plan.model_copy(update={"offload": Offload(**shares)}).checked()


def check_state(place: Place, plans: list[Plan]) -> None:
    for plan in plans:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        with replaced(SMALL):
            plain, _, _ = trained(plan, mesh)
            before = memory_of_rank(plan, mesh.at)
            for share in (0.5, 1.0):
                away = with_offload(plan, optimizer=share)
                found, trainer, _ = trained(away, mesh)
                assert same(found, plain), f"{share} of the state on the host changes bits: {plan}"
                memory, shards = memory_of_rank(away, mesh.at), trainer.optimizer.shards
                on_host = sum(x.nbytes for s in shards if s.is_on_host for x in s.state)
                here = sum(x.nbytes for s in shards if not s.is_on_host for x in s.state)
                assert (here, on_host) == (memory.optimizer, memory.host), plan
                assert before.optimizer - memory.optimizer == memory.host >= share * before.optimizer, plan
                assert len(shards) > 1 or share == 1, "a share divides the buckets"
        mesh.disconnect()


STATE = {
    1: [tiny(), tiny(precision=BF16, optimizer=LION_AND_MUON)],
    2: [
        *(tiny(data=2, zero=zero, precision=BF16) for zero in range(3)),
        tiny(data=2, zero=3, optimizer=LION_AND_MUON),
        tiny(tensor=2, precision=BF16, optimizer=LION_AND_MUON),
    ],
}


@pytest.mark.parametrize("ranks", STATE)
def test_optimizer_state_on_the_host_changes_no_bit_and_leaves_as_many_bytes_as_predicted(ranks: int) -> None:
    on_ranks(ranks, check_state, STATE[ranks])


def check_activations(place: Place, plans: list[Plan]) -> None:
    for plan in plans:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        plain, _, before = trained(plan, mesh)
        for share in (0.5, 1.0):
            away = with_offload(plan, activations=share)
            found, _, run = trained(away, mesh)
            assert same(found, plain), f"{share} of the activations on the host changes bits: {plan}"
            memory = memory_of_rank(away, mesh.at)
            assert (run.peak_saved_bytes, run.peak_host_bytes) == (memory.activations, memory.host), (share, plan)
            alike = plan.recompute.every == 1  # of layers that are not, two that keep most are counted
            assert run.peak_returned_bytes == memory.returned or not alike, (share, plan)
            assert run.peak_returned_bytes <= memory.returned, (share, plan)
            if plan.layout.pipeline == 1:  # otherwise another moment may be the peak
                assert before.peak_saved_bytes - run.peak_saved_bytes == run.peak_host_bytes, (share, plan)
        mesh.disconnect()


ACTIVATIONS = {
    1: [
        tiny(),
        tiny(precision=BF16, recompute={"mode": "layer"}),
        tiny(model={**ROTARY, "dropout": 0.2}, recompute={"mode": "attention", "every": 2}),
    ],
    2: [
        tiny(pipeline=2),
        tiny(pipeline=2, chunks=2, recompute={"mode": "layer"}),
        tiny(tensor=2, sequence_parallel=True, precision=BF16),
        tiny(data=2, zero=3, precision=BF16),
    ],
}


@pytest.mark.parametrize("ranks", (1, pytest.param(2, marks=pytest.mark.broad)))
def test_activations_on_the_host_change_no_bit_and_leave_as_many_bytes_as_predicted(ranks: int) -> None:
    on_ranks(ranks, check_activations, ACTIVATIONS[ranks])


def check_both(place: Place, plans: list[Plan]) -> None:
    for plan in plans:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        plain, _, before = trained(plan, mesh)
        away = with_offload(plan, optimizer=1.0, activations=0.5)
        found, _, run = trained(away, mesh)
        assert same(found, plain), f"offload changes bits: {away}"
        memory = memory_of_rank(away, mesh.at)
        assert run.peak_saved_bytes < before.peak_saved_bytes and run.peak_host_bytes > 0, away
        if not plan.model.adapters and plan.layout.expert == 1 and plan.precision.float8 is None:
            on_host = with_offload(plan, activations=0.5)
            assert run.peak_saved_bytes == memory.activations, away
            assert run.peak_host_bytes == memory_of_rank(on_host, mesh.at).host, away
        mesh.disconnect()


ADAPTED = {"adapters": [{"match": "*", "settings": {"r": 2, "dropout": 0.1}}]}
TOGETHER = {
    1: [
        tiny(model={**ROTARY, "hidden": 32, "ffn": 64}, precision={"weights": "bf16", "float8": {"recipe": "delayed"}}),
        tiny(model=ADAPTED),
    ],
    2: [
        tiny(pipeline=2, schedule="zb-h1", precision=BF16),
        tiny(pipeline=2, chunks=2, schedule="zb-turns"),
        tiny(pipeline=2, chunks=2, schedule="zb-v"),
        tiny(data=2, expert=2, zero=2, model=EXPERTS),
    ],
}


@pytest.mark.broad
@pytest.mark.parametrize("ranks", TOGETHER)
def test_offload_changes_no_bit_of_deferred_gradients_experts_adapters_and_8_bit_products(ranks: int) -> None:
    on_ranks(ranks, check_both, TOGETHER[ranks])


def test_a_run_resumes_with_offload_or_without_and_computes_the_same_bits(tmp_path: Path) -> None:
    plain = small(precision=BF16, optimizer=LION_AND_MUON)
    away = with_offload(plain, optimizer=0.5, activations=1.0)

    def losses(trainer: Trainer, steps: range) -> list[float]:
        read = random_rows(plain)
        return [trainer.train_step(n, Samples(16 * n, 16, read), 1e-2).loss for n in steps]

    with replaced(SMALL):
        expected = losses(Trainer(plain, Mesh.single(), seed=1, rule=AdamRule()), range(4))[2:]
        for number, (first, then) in enumerate(((plain, away), (away, plain))):
            trainer = Trainer(first, Mesh.single(), seed=1, rule=AdamRule())
            losses(trainer, range(2))
            path = save_state(trainer, tmp_path / str(number), 2)
            resumed = Trainer(then, Mesh.single(), seed=9, rule=AdamRule(), initial=False)
            restore(resumed, Checkpoint.open(path))
            assert losses(resumed, range(2, 4)) == expected, f"from {first.offload} to {then.offload}"


def test_recorded_steps_refuse_activations_on_the_host_by_name() -> None:
    assert not small(cuda_graphs=True, zero=0, offload={"optimizer": 1.0}).check()
    (problem,) = Plan(**{**dict(small()), "cuda_graphs": True, "offload": Offload(activations=0.5)}).check()
    assert "plan.offload.activations is 0.5" in problem and "set plan.cuda_graphs to false" in problem


@pytest.mark.parametrize(
    ("share", "layers", "expected"), [(0.3, 10, 3), (0.31, 10, 4), (0, 7, 0), (1, 7, 7), (0.1, 3, 1)]
)
def test_the_first_layers_of_a_stage_make_up_a_share(share: float, layers: int, expected: int) -> None:
    assert Offload(activations=share).layers(layers) == expected


@pytest.mark.parametrize(("share", "expected"), [(0, 0), (0.1, 1), (0.5, 1), (0.51, 2), (0.8, 2), (1, 3)])
def test_the_first_buckets_reach_a_share(share: float, expected: int) -> None:
    assert Offload(optimizer=share).buckets([50, 30, 20]) == expected
