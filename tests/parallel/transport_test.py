"""Transfers carried out in order, as on NCCL, compute what transfers posted ahead compute."""

from plans import small
from ranks import on_ranks
from trivium.certify.reference import random_rows
from trivium.parallel.launch import Place
from trivium.parallel.mesh import Mesh
from trivium.parallel.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.training.trainer import Samples, Trainer

PLANS = [
    small(pipeline=4),
    small(pipeline=4, schedule="gpipe"),
    small(pipeline=2, data=2, chunks=2),
    small(pipeline=4, schedule="zb-h1"),
    small(pipeline=4, schedule="1f1b-split"),
    small(pipeline=2, tensor=2, chunks=2, schedule="zb-v"),
    small(pipeline=4, chunks=2, schedule="zb-turns", model={"layers": 8}),
]


def both_ways(place: Place, plans: list[Plan]) -> None:
    for plan in plans:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        results = []
        for way in ("posted", "in order"):
            trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
            trainer.transport = way  # type: ignore[assignment]
            samples = Samples(0, plan.batch.sequences, random_rows(plan))
            result = trainer.train_step(0, samples, 1e-3)
            results.append((result.loss, result.gradient_norm))
        assert results[0] == results[1], f"{plan.schedule}: {results}"


def test_transfers_in_order_give_the_same_bits() -> None:
    on_ranks(4, both_ways, PLANS)
