"""At ZeRO stages 1 and 2 updated weights arrive during the next forward, before the module that reads them."""

from typing import Any

import pytest
import torch

from plans import small
from ranks import on_ranks
from trivium.certify.reference import random_rows
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.parallel.sharding import buckets
from trivium.parallel.sharding.zero import AdamRule, ShardedOptimizer
from trivium.plan import buckets as table
from trivium.plan.plan import Plan
from trivium.training.trainer import Samples, Trainer

STEPS = 3
PLANS = {
    "zero 1": small(data=2, zero=1),
    "zero 2, tied ends": small(data=2, zero=2, model={"head": "tied"}),
    "two stages a rank": small(data=2, pipeline=2, chunks=2, zero=1),
    "Muon": small(data=2, zero=1, optimizer={"groups": [{"match": "*.up.weight", "rule": "muon"}]}),
}


class Late:
    """A gather of which nothing arrives before it is waited for."""

    def __init__(self, gather: Any, log: list[str], name: str) -> None:
        self.gather, self.log, self.name = gather, log, name

    def wait(self) -> None:
        self.gather(wait=True)
        self.log.append(f"arrived {self.name}")


def trained(plan: Plan, place: Place, late: bool) -> tuple[list[torch.Tensor], list[str]]:
    """Train, and return the weights and what happened in the last step."""
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    trainer, log = Trainer(plan, mesh, seed=1, rule=AdamRule()), list[str]()
    original = buckets.all_gather_into
    names = {b.shard.data_ptr(): str(n) for n, b in enumerate(trainer.buckets)}

    def gather(out: Any, x: Any, group: Any, *, wait: bool = True) -> Any:
        return Late(lambda wait: original(out, x, group, wait=wait), log, names[x.data_ptr()])

    for stage in trainer.stages.values():
        for number, (module, _, _) in enumerate(stage.modules_in_order()):
            module.register_forward_hook(lambda *_, number=number: log.append(f"computed {number}"))
    with pytest.MonkeyPatch.context() as patch:
        if late:
            patch.setattr(buckets, "all_gather_into", gather)
            patch.setattr(ShardedOptimizer, "_gathers_beside_forward", True)  # as on an accelerator
        for step in range(STEPS):
            log.clear()
            trainer.train_step(step, Samples(0, plan.batch.sequences, random_rows(plan)), 1e-2)
        last = list(log)
        return [bucket.weights.clone() for bucket in trainer.buckets], last


def compare(place: Place, plan: Plan) -> None:
    weights, _ = trained(plan, place, late=False)
    others, log = trained(plan, place, late=True)
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
    assert any(each.startswith("arrived") for each in log)


def overlap(place: Place) -> None:
    table.BUCKET_ELEMENTS = 500  # a bucket or more for each block
    _, log = trained(small(data=2, zero=1), place, late=True)
    arrived, blocks = [n for n, each in enumerate(log) if each.startswith("arrived")], log.index("computed 1")
    assert len(arrived) > 4 and arrived[0] < blocks < arrived[-1]


@pytest.mark.parametrize("name", PLANS)
def test_weights_that_arrive_as_late_as_possible_are_those_that_are_used(name: str) -> None:
    on_ranks(PLANS[name].layout.world_size, compare, PLANS[name])


def test_weights_of_later_layers_arrive_after_the_first_ones_have_computed() -> None:
    on_ranks(2, overlap)
