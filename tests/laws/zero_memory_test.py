"""The bytes that each ZeRO stage holds are those of the ZeRO paper (arXiv 1910.02054), plus declared padding."""

import gc
from typing import Any

import pytest
import torch

from plans import small
from ranks import on_ranks
from trivium.certify.reference import random_rows
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.comms.pretend import pretended
from trivium.cost.memory import memory_of_rank
from trivium.parallel.sharding.buckets import Bucket
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.buckets import bucket_table
from trivium.plan.plan import Plan
from trivium.training.trainer import Samples, Trainer

HALF = {"weights": "bf16", "gradients": "bf16"}
PAPERS = {"weights": "bf16"}  # gradients accumulate in fp32


def counted(trainer: Trainer) -> dict[str, int]:
    shards, buckets = trainer.optimizer.shards, trainer.buckets

    def size(tensor) -> int:
        return tensor.numel() * tensor.element_size()

    return {
        "weights": sum(size(b.shard if trainer.plan.zero == 3 else b.weights) for b in buckets),
        "gradients": sum(size(b.gradients) for b in buckets),
        "optimizer": sum(size(s.master) + sum(size(v) for p in s.parts for v in p.states.values()) for s in shards),
    }


def check(place: Place, plans: list[Plan], bytes_per_parameter: list[tuple[int, int]]) -> None:
    for plan, (whole, sharded) in zip(plans, bytes_per_parameter, strict=True):
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
        psi = sum(row.padded for row in bucket_table(plan, 0))  # padding declared in the table
        found = counted(trainer)
        assert sum(found.values()) == whole * psi + sharded * psi // mesh.sharers.size, (plan.zero, found, psi)
        predicted = memory_of_rank(plan, mesh.at).categories()
        assert {k: predicted[k] for k in found} == found
        read = random_rows(plan)
        trainer.train_step(0, Samples(0, plan.batch.sequences, read), 1e-3)
        after = counted(trainer)
        assert after == found, "a step leaves nothing behind"
        if plan.zero == 3:
            assert all(b.weights.untyped_storage().size() == 0 for b in trainer.buckets)
        mesh.disconnect()


@pytest.mark.broad
@pytest.mark.parametrize("replicas", [{"data": 2}, {"data": 4}, {"data": 2, "context": 2}, {"data": 4, "shards": 2}])
def test_bytes_per_parameter_are_those_of_the_paper(replicas: dict[str, int]) -> None:
    """16 Psi, 4 Psi + 12 Psi/d, 2 Psi + 14 Psi/d, 16 Psi/d; with fp32 gradients 18 instead of 16. d: sharing ranks."""
    whole = {name: n for name, n in replicas.items() if name != "shards"}
    plans = [
        small(**(replicas if zero else whole), zero=zero, precision=precision)
        for precision in (HALF, PAPERS)
        for zero in range(4)
    ]
    expected = [(16, 0), (4, 12), (2, 14), (0, 16), (18, 0), (6, 12), (2, 16), (0, 18)]
    size = plans[0].layout.world_size
    on_ranks(size, check, plans, expected)


def bytes_held() -> int:
    """Return the bytes of all tensors of this process, each storage once. Garbage of earlier tests must be collected
    before, or it is freed between two calls."""
    found = (x.untyped_storage() for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter))
    return sum({x._cdata: x.nbytes() for x in found if x.device.type == "cpu"}.values())


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_a_rank_that_keeps_slices_never_holds_the_whole_model_not_even_at_first(
    monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    """It holds only the slices, the bucket being filled and its source; otherwise a model that fits could not start."""
    plan = small(data=8, zero=3, model={"layers": 24}, precision={"weights": weights})
    gc.collect()
    held, before, init = [], bytes_held(), Bucket.__init__

    def filled(self: Bucket, *given: Any) -> None:
        held.append(bytes_held() - before)
        init(self, *given)

    monkeypatch.setattr(Bucket, "__init__", filled)
    with pretended(plan.layout, 0) as mesh:
        trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
    largest = max(bucket.padded * bucket.weights.element_size() for bucket in trainer.buckets)
    assert len(held) == len(trainer.buckets) and max(held) <= counted(trainer)["weights"] + largest


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("rank", range(4))
def test_a_rank_keeps_what_is_predicted_and_no_tensor_besides(zero: int, rank: int) -> None:
    """This includes copies that the norm does not count: the tied table, and parameters that tensor ranks share."""
    plan = small(tensor=2, pipeline=2, data=2, zero=zero, precision={"weights": "bf16"})
    gc.collect()
    before = bytes_held()
    with pretended(plan.layout, rank) as mesh:
        trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
        predicted = memory_of_rank(plan, mesh.at)
    assert bytes_held() - before == predicted.weights + predicted.optimizer
    del trainer  # it must exist until here
