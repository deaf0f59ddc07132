"""What runs is the table: its events in order, holding as many activations as the table says."""

import pytest

from plans import small
from ranks import on_ranks
from trivium.certify.reference import random_rows
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.cost.in_flight import peak_counts_of
from trivium.parallel.sharding.zero import AdamRule
from trivium.plan.plan import Plan
from trivium.plan.transfers import with_transfers
from trivium.training.trainer import Samples, Trainer

PLANS = {
    1: [small(), small(schedule="gpipe"), small(schedule="zb-h1")],
    2: [
        small(pipeline=2),
        small(pipeline=2, schedule="gpipe"),
        small(pipeline=2, chunks=2),
        small(pipeline=2, schedule="zb-h1"),
        small(pipeline=2, chunks=2, schedule="zb-v"),
        small(pipeline=2, chunks=2, schedule="zb-turns"),
    ],
    4: [
        small(pipeline=4),
        *(small(pipeline=4, schedule=s) for s in ("zb-h1", "1f1b-split")),
        small(pipeline=2, data=2, chunks=2),
        small(pipeline=4, chunks=2, schedule="zb-turns", model={"layers": 8}),
    ],
}


def execute(place: Place, plans: list[Plan]) -> None:
    for plan in plans:
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
        trainer = Trainer(plan, mesh, seed=1, rule=AdamRule())
        samples = Samples(0, plan.batch.sequences, random_rows(plan))
        run = trainer.train_step(0, samples, 1e-3).run
        table, here = plan.schedule_table(), mesh.at.pipeline
        assert [span.event for span in run.spans] == list(with_transfers(table)[here])
        assert all(a.end <= b.start for a, b in zip(run.spans, run.spans[1:], strict=False))
        assert run.peak_held == max(map(sum, peak_counts_of(table[here])))
        mesh.disconnect()


@pytest.mark.parametrize("ranks", sorted(PLANS))
def test_the_executed_timeline_has_the_tables_events_in_order_and_its_peak_of_activations(ranks: int) -> None:
    on_ranks(ranks, execute, PLANS[ranks])
