"""Transfers carried out in order, as on NCCL, compute what transfers posted ahead compute."""

from types import SimpleNamespace

import torch
import torch.distributed as dist

from plans import small
from ranks import on_ranks
from trivium.certify.reference import random_rows
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.comms.transfers import POSTED_AHEAD, InOrder, Results
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.plan.schedule import make_schedule
from trivium.plan.transfers import Transfer, with_transfers
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
            trainer.transport = way
            samples = Samples(0, plan.batch.sequences, random_rows(plan))
            result = trainer.train_step(0, samples, 1e-3)
            results.append((result.loss, result.gradient_norm))
        assert results[0] == results[1], f"{plan.schedule}: {results}"
        mesh.disconnect()


def test_transfers_in_order_give_the_same_bits() -> None:
    on_ranks(4, both_ways, PLANS)


def test_over_nccl_each_message_is_complete_by_itself_and_few_are_under_way(monkeypatch) -> None:
    """A reader waits for its message alone, and a sent tensor stays in memory until its message is complete."""
    begun, waited = [], []

    def begin(operations):
        begun.append(operations)
        number = len(begun)
        return [SimpleNamespace(wait=lambda: waited.append(number))]

    monkeypatch.setattr(dist, "P2POp", lambda *words: words)
    monkeypatch.setattr(dist, "batch_isend_irecv", begin)
    group = SimpleNamespace(ranks=(4, 5, 6, 7), handle=None, count=lambda *_: None)
    mesh = SimpleNamespace(pipeline=group, at=SimpleNamespace(pipeline=1))
    program = with_transfers(make_schedule("1f1b", pipeline=4, micro_batches=8))[1]
    transport, results = InOrder(program, mesh, lambda: torch.zeros(2)), Results()
    for event in program:
        transport.before(event)
        if isinstance(event, Transfer):
            if event.source == 1:
                results.put(event.produced_by, torch.ones(2))
            transport.carry(event, results)
            assert len(begun) - len(waited) <= POSTED_AHEAD
            if event.target == 1 and len(begun) not in waited:
                results.pop(event.produced_by)
                assert waited[-1] == len(begun)  # and not what was begun beside it
    transport.finish()
    transfers = [e for e in program if isinstance(e, Transfer)]
    assert [len(operations) for operations in begun] == [1] * len(transfers)
    assert set(waited) == set(range(1, len(transfers) + 1))
    peers = [operations[0][2] for operations in begun]
    assert peers == [group.ranks[t.source if t.target == 1 else t.target] for t in transfers]
