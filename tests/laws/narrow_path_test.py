"""The code path of 16-bit weights, run in fp64, where every deviation shows.

With fp64 weights autograd adds gradients into the buffers itself, and weights are their own masters; with 16-bit ones
neither is so. Certificates are in fp64 and do not cover this path, so it runs here: the engine adds the gradients of
each parameter, and masters are separate from the weights to which they are copied.
"""

from typing import Any

import pytest
import torch

from plans import small
from ranks import on_ranks
from trivium.certify.certificate import RULE
from trivium.certify.reference import random_rows
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.parallel.sharding.buckets import Bucket
from trivium.plan.plan import Plan
from trivium.training.trainer import Samples, Trainer

STEPS = 3
FP64 = {"precision": {"weights": "fp64"}}
PLANS = [
    small(**FP64),
    small(**FP64, pipeline=2, chunks=2, schedule="zb-v", model={"head": "tied"}),
    small(**FP64, data=2, zero=0),
    small(**FP64, data=2, zero=1, recompute={"mode": "layer"}),
    small(**FP64, data=2, zero=2, model={"head": "tied"}),
    small(**FP64, tensor=2, zero=1, sequence_parallel=True),
    small(**FP64, pipeline=2, schedule="zb-h1", model={"head": "tied"}),
]


class Apart(Bucket):
    """A bucket as for 16-bit weights: autograd adds nothing into it."""

    @property
    def adds_itself(self) -> bool:
        """Return False, whatever was assigned."""
        return False

    @adds_itself.setter
    def adds_itself(self, value: bool) -> None:
        """Ignore the value."""


def trained(plan: Plan, place: Place, *, apart: bool) -> list[Any]:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    with pytest.MonkeyPatch.context() as patch:
        if apart:
            patch.setattr("trivium.parallel.sharding.buckets.Bucket", Apart)
        one = Trainer(plan, mesh, seed=4, rule=RULE)
    assert {b.adds_itself for b in one.buckets} == {not apart and plan.zero < 2}
    if apart:
        for shard in one.optimizer.shards:
            shard.master = shard.master.clone()
    read, found = random_rows(plan), []
    for step in range(STEPS):
        sequences = plan.batch.sequences
        rows = Samples(step * sequences, sequences, read)
        result = one.train_step(step, rows, 1e-2)
        found += [torch.tensor([result.loss, result.gradient_norm], dtype=torch.float64)]
    for bucket in one.buckets:
        bucket.hold()
        found.append(bucket.weights.clone())
        bucket.drop()
    return found


def compare(place: Place, plan: Plan) -> None:
    """Compare both code paths on a forked rank."""
    for expected, found in zip(*(trained(plan, place, apart=a) for a in (False, True)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.broad
@pytest.mark.parametrize("plan", PLANS, ids=lambda p: f"{p.schedule} {p.layout.world_size} zero {p.zero}")
def test_gradients_added_by_us_and_masters_apart_change_nothing(plan: Plan) -> None:
    on_ranks(plan.layout.world_size, compare, plan)
