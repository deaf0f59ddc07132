"""A trainer's memory is freed with it, so that a process may train one model after the other."""

import gc
import weakref

import pytest

from plans import small
from trivium.certify.layouts import ROTARY
from trivium.certify.reference import random_rows
from trivium.comms.mesh import Mesh
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.training.trainer import Samples, Trainer


@pytest.mark.parametrize(
    "plan",
    [
        small(),
        small(model={"head": "untied"}, zero=0, recompute={"mode": "layer"}),
        small(zero=2, precision={"weights": "bf16"}),
        small(zero=3, schedule="zb-h1"),
        small(model={**ROTARY, "kv_heads": 2, "hidden": 32, "documents": "apart"}),
    ],
)
def test_weights_and_gradients_are_freed_with_their_trainer(plan: Plan) -> None:
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    for step in range(2):
        trainer.train_step(step, Samples(0, plan.batch.sequences, random_rows(plan)), 1e-3)
    held = [weakref.ref(bucket) for bucket in trainer.buckets]
    held += [weakref.ref(parameter) for stage in trainer.stages.values() for parameter in stage.parameters()]
    held += [weakref.ref(trainer)]
    del trainer
    gc.collect()
    assert [each() for each in held if each() is not None] == []
