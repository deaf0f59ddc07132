"""From ZeRO stage 2 on, whole gradients do not pile up: the bucket before is collected when the next is reduced."""

import numpy as np
import pytest

from trivium.comms.pretend import pretended
from trivium.parallel.sharding.buckets import Bucket
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan import buckets
from trivium.plan.plan import Plan
from trivium.tokens.rows import Rows
from trivium.training.trainer import Samples, Trainer


@pytest.mark.parametrize("zero", (2, 3))
def test_one_reduction_is_under_way_when_the_next_begins(zero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan.model_validate(
        {
            "model": {"layers": 3, "hidden": 8, "heads": 2, "vocabulary": 16, "sequence": 4},
            "layout": {"data": 2},
            "batch": {"sequences": 4, "micro": 1},  # two micro-batches
            "zero": zero,
        }
    ).checked()
    monkeypatch.setattr(buckets, "BUCKET_ELEMENTS", 64)
    under_way: list[int] = []
    begin = Bucket._begin

    def watched(self: Bucket, whole) -> None:
        under_way.append(sum(bucket.is_reducing for bucket in trainer.buckets))
        begin(self, whole)

    monkeypatch.setattr(Bucket, "_begin", watched)
    with pretended(plan.layout, 0) as mesh:
        trainer = Trainer(plan, mesh, seed=0, rule=AdamRule())
        ids = np.zeros((4, 5), dtype=np.int64)
        trainer.train_step(0, Samples(0, 4, lambda n, k: Rows.of_text(ids[n : n + k])), 1e-3)
        assert not any(bucket.is_reducing for bucket in trainer.buckets)
    assert len(trainer.buckets) > 2 and len(under_way) == 2 * len(trainer.buckets)
    assert set(under_way) == {0, 1} and under_way.count(0) == 1
