"""Replicas are equal bit for bit under every layout, and a rank with one other bit is named."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from chaos.scene import job, plan, write_tokens
from plans import EXPERTS, small
from ranks import on_ranks
from trivium.checkpoint.format import published
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.config import merge
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.tokens.rows import Rows
from trivium.training import loop
from trivium.training.metrics import EVENTS, read
from trivium.training.observers.corruption import (
    ReplicasDiffer,
    checksum,
    compare_replicas,
    odd_ones,
    replicated,
    sums_in_one_order,
)
from trivium.training.record import CHECKPOINTS
from trivium.training.supervision.job import start
from trivium.training.trainer import Samples, Trainer

LAYOUTS = (
    {"data": 3, "zero": 1},
    {"data": 2, "tensor": 2, "zero": 2},
    {"data": 2, "tensor": 2, "zero": 3, "sequence_parallel": True},
    {"pipeline": 2, "tensor": 2, "zero": 1},
    {"pipeline": 2, "data": 2, "zero": 0},
    {"data": 4, "shards": 2, "zero": 1},
    {"data": 4, "shards": 2, "zero": 3},
    {"pipeline": 2, "chunks": 2, "schedule": "zb-turns", "zero": 0},
    {"tensor": 2, "data": 2, "expert": 2, "zero": 1},
    {"data": 4, "expert": 2, "shards": 2, "zero": 2},
    {"data": 4, "expert": 2, "shards": 2, "zero": 3},
)


def rows(first: int, count: int) -> Rows:
    drawn = torch.randint(0, 300, (count, 9), generator=torch.Generator().manual_seed(first))
    return Rows.of_text(drawn.numpy())


def of(layout: dict, weights: str) -> Plan:
    given = plan({}, weights=weights, dropout=0.1)
    degrees = {k: v for k, v in layout.items() if k in ("tensor", "pipeline", "data", "shards", "chunks", "expert")}
    rest = {k: v for k, v in layout.items() if k not in degrees}
    batch = {"sequences": 12 if layout.get("data") == 3 else 8, "micro": 2}
    model = EXPERTS if "expert" in layout else {}
    tree = merge(given.model_dump(), {"layout": degrees, "batch": batch, "model": model, **rest})
    return Plan.model_validate(tree).checked()


def trained(place: Place, given: Plan, steps: int = 2) -> Trainer:
    mesh = Mesh.connect(given.layout, place.rank, place.world_size, place.device)
    trainer = Trainer(given, mesh, seed=3, rule=AdamRule())
    for step in range(steps):
        sequences = given.batch.sequences
        trainer.train_step(step, Samples(step * sequences, sequences, rows), 1e-3)
    return trainer


def stay_equal(place: Place, given: Plan) -> None:
    trainer = trained(place, given)
    compare_replicas(trainer)
    assert any(held for group, held in replicated(trainer) if group.size > 1)


@pytest.mark.broad
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_replicas_are_equal_bit_for_bit(layout) -> None:
    given = of(layout, "bf16")
    on_ranks(given.layout.world_size, stay_equal, given)


def flip(values: torch.Tensor, at: int) -> None:
    values.view(-1).view(torch.uint8)[at] ^= 4


def names_the_rank(place: Place, given: Plan, group: str, victim: int, expected: tuple[int, ...]) -> None:
    trainer = trained(place, given, steps=1)
    compare_replicas(trainer)
    if place.rank == victim:
        held = next(h for g, h in replicated(trainer) if g is getattr(trainer.mesh, group))
        flip(next(h.values for h in reversed(held) if h.values.numel() > 1), 1)
    with pytest.raises(ReplicasDiffer) as found:
        compare_replicas(trainer)
    assert found.value.ranks == expected, found.value


@pytest.mark.parametrize(
    ("layout", "group", "victim", "expected"),
    [
        ({"data": 3, "zero": 2}, "replicas", 2, (2,)),
        ({"data": 2, "zero": 1}, "replicas", 1, (0, 1)),
        ({"data": 2, "tensor": 2, "zero": 0}, "tensor", 3, (3,)),
        ({"pipeline": 2, "zero": 0}, "ends", 1, (0, 1)),
        ({"pipeline": 2, "chunks": 2, "schedule": "zb-turns", "zero": 0}, "ends", 1, (0, 1)),
        ({"data": 4, "shards": 2, "zero": 3}, "holders", 3, (1, 3)),
        ({"data": 4, "expert": 2, "zero": 1}, "expert_replicas", 3, (1, 3)),
    ],
)
def test_one_bit_names_the_rank(layout, group, victim, expected) -> None:
    given = of(layout, "fp32")
    on_ranks(given.layout.world_size, names_the_rank, given, group, victim, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0, 1])
def test_every_bit_changes_the_checksum(dtype, offset) -> None:
    values = torch.randn(5000).to(dtype)[offset:]
    right = checksum(values)
    assert checksum(values.clone()) == right
    for at in torch.randint(0, values.numel() * values.element_size(), (200,)).tolist():
        for bit in (1, 128):
            values.view(torch.uint8)[at] ^= bit
            assert checksum(values) != right
            values.view(torch.uint8)[at] ^= bit


def test_exchanged_elements_change_the_checksum() -> None:
    values = torch.randn(3000)
    assert checksum(values.roll(1)) != checksum(values)


def test_the_majority_is_right_and_without_one_nobody_is() -> None:
    assert odd_ones([7, 7, 7]) == []
    assert odd_ones([7, 8, 7]) == [1]
    assert odd_ones([7, 8]) == [0, 1]
    assert odd_ones([7, 8, 9, 7]) == [0, 1, 2, 3]


def test_corrupted_replica_is_never_saved_and_the_job_restarts_from_before(tmp_path: Path, monkeypatch) -> None:
    right = loop.Loop.train_step

    def corrupting(self):
        result = right(self)
        mark = self.job.out / "done"
        if self.mesh.rank == 1 and self.step == 6 and not mark.exists():
            mark.touch()
            flip(self.trainer.buckets[0].weights, 3)
        return result

    monkeypatch.setattr(loop.Loop, "train_step", corrupting)
    given = job(write_tokens(tmp_path), tmp_path / "run", plan({"data": 4}), steps=8, restarts=1, save="waiting")
    start(given)
    (failure,) = [e for e in read(tmp_path / "run" / EVENTS) if e["event"] == "rank failed"]
    assert "silent corruption: rank 1 holds other bits" in failure["cause"] and failure["in_step"] == 6
    assert [e["step"] for e in read(tmp_path / "run" / EVENTS) if e["event"] == "resumed"] == [4]
    assert published(tmp_path / "run" / CHECKPOINTS)


@pytest.mark.parametrize(("device", "replicas", "alike"), [("cpu", 8, True), ("cuda", 2, True), ("cuda", 3, False)])
def test_tensor_ranks_are_compared_if_their_sums_have_one_order(device, replicas, alike):
    mesh = SimpleNamespace(device=torch.device(device), replicas=SimpleNamespace(size=replicas))
    assert sums_in_one_order(mesh) == alike


def test_what_is_compared_of_a_tensor_is_all_of_it_whichever_rules_update_it() -> None:
    """The states of a rule begin anywhere in a rank's slice of a bucket."""
    groups = [{"match": "*norm*"}, {"match": "layers.*.weight", "rule": "muon"}]
    trainer = Trainer(small(optimizer={"groups": groups}), Mesh.single(), seed=3, rule=AdamRule())
    expected = {}
    for shard in trainer.optimizer.shards:
        for slot in shard.bucket.slots:
            size, number = slot.stop - slot.start, len(expected) + 1
            expected[slot.row.name] = [number] * size
            for values in shard.tensors(slot.start - shard.bucket.owned.start, size).values():
                values.fill_(number)
    (held,) = [held for group, held in replicated(trainer) if group is trainer.mesh.tensor]
    alike = [slot.row.name for b in trainer.buckets for slot in b.slots if slot.row.split is None]
    assert len(alike) > 10, "vectors, which AdamW updates"
    for name in alike:
        found = {h.name: h.values.tolist() for h in held if h.name.endswith(f" of {name}") and h.values.numel()}
        assert found == {f"{kind} of {name}": expected[name] for kind in ("weights", "moment1", "moment2")}
