"""The bytes of a checkpoint by rank are those of the fragments that the ranks of a training write."""

import pytest

from chaos.scene import LAYOUTS, SEED, plan
from trivium.comms.pretend import pretended
from trivium.cost.hardware import machine_named
from trivium.cost.saving import near_copy, saved_bytes
from trivium.plan.offload import Offload
from trivium.training.config import TrainingConfig
from trivium.training.state import fragments
from trivium.training.trainer import Trainer, adam_rule


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("weights", "away"), [("fp64", 0.0), ("bf16", 0.0), ("bf16", 1.0)])
def test_bytes_are_those_that_ranks_write(layout, weights: str, away: float) -> None:
    of = plan(layout, weights=weights).model_copy(update={"offload": Offload(optimizer=away)})
    written = []
    for rank in range(of.layout.world_size):
        with pretended(of.layout, rank) as mesh:
            trainer = Trainer(of, mesh, seed=SEED, rule=adam_rule(TrainingConfig()))
            written.append(sum(fragment.values.nbytes for fragment in fragments(trainer)))
    found = saved_bytes(of)
    assert sum(written) == pytest.approx(found.total, rel=1e-3)
    assert sum(map(bool, written)) == found.writers
    assert max(written) <= found.largest * 1.01


def test_copy_of_half_the_state_takes_half_as_long() -> None:
    machine = machine_named("dgx-h100")
    one, two = (near_copy(plan({"data": n, "zero": 1}), machine) for n in (2, 4))
    assert one.stops_seconds == pytest.approx(2 * two.stops_seconds, rel=0.05)
    assert one.sends_seconds == pytest.approx(2 * two.sends_seconds, rel=0.05)
