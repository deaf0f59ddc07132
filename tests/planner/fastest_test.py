"""The layout to which a training moves: the planner's fastest, for the same training."""

import pytest

from trivium.cli.run_config import Given, resolve
from trivium.cost.estimate import estimate
from trivium.cost.hardware import machine_named, this_machine
from trivium.plan.plan import Plan
from trivium.planner.config import SearchSpace
from trivium.planner.fastest import fastest, for_hosts, of_hosts

PLAN = resolve(Given("demo")).plan
SAME = {"layout", "schedule", "rows", "partition", "zero", "recompute", "sequence_parallel", "batch"}


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_no_number_of_ranks_that_fits_the_cores_is_faster(cores: int) -> None:
    machine = this_machine(cores, 8 << 30)
    found = fastest(PLAN, machine, SearchSpace())
    assert found.plan.check() == [] and found.plan.layout.world_size <= cores
    seconds = estimate(found.plan, machine).seconds
    for data in range(1, cores + 1):
        layout = PLAN.layout.model_copy(update={"tensor": 1, "pipeline": 1, "chunks": 1, "data": data})
        other = PLAN.model_copy(update={"layout": layout, "schedule": "1f1b"})
        assert other.check() or seconds <= estimate(other, machine).seconds * (1 + 1e-6)


def test_the_training_stays_the_same_and_the_reason_names_both_layouts() -> None:
    found = fastest(PLAN, this_machine(2, 8 << 30), SearchSpace())
    changed = {name for name in type(PLAN).model_fields if getattr(found.plan, name) != getattr(PLAN, name)}
    assert "layout" in changed and changed <= SAME
    assert found.plan.batch.model_copy(update={"micro": PLAN.batch.micro}) == PLAN.batch
    assert "data 2 (2 ranks) is fastest on 2 CPU cores" in found.why and "tensor 2 x pipeline 2 x data 2" in found.why


@pytest.mark.parametrize("changes", [{"precision.float8.recipe": "row"}, {"model.feed_forward": "experts"}])
def test_micro_batches_stay_where_they_change_what_is_computed(changes: dict[str, str]) -> None:
    experts = {"model.norm": "rms_norm", "model.bias": "none", "model.experts.count": "4", "model.experts.chosen": "2"}
    more = {**experts, "model.experts.balance_loss": "0.01", "batch.micro": "1", **changes}
    plan = Plan.from_preset("demo", *(f"{name}={value}" for name, value in more.items()))
    kept = fastest(plan, this_machine(2, 8 << 30), SearchSpace()).plan
    free = plan.model_copy(update={"precision": PLAN.precision, "model": PLAN.model})
    assert kept != plan and kept.batch == plan.batch
    assert fastest(free, this_machine(2, 8 << 30), SearchSpace()).plan.batch.micro > 1


def test_a_training_in_the_fastest_layout_keeps_it() -> None:
    machine = this_machine(2, 8 << 30)
    best = fastest(PLAN, machine, SearchSpace()).plan
    assert fastest(best, machine, SearchSpace()).plan == best


SPACE = SearchSpace(context=(1,), schedules=("1f1b",), finalists=4)
SIZES = "precision.weights=bf16", "batch.sequences=8", "batch.ramp=null", "layout.data=4", "zero=1"
RECORDED = Plan.from_preset("gpt-1.3b", *SIZES, "compiled=true", "cuda_graphs=true")
SMALL = machine_named("workstation").model_copy(update={"memory_bytes": 12_000_000_000, "nodes": 4})


def test_a_training_that_fits_only_with_offload_moves_to_fewer_hosts() -> None:
    assert for_hosts(RECORDED, SMALL, (1, 1), 1, SPACE.model_copy(update={"offload": (0.0,)})) is None
    found = for_hosts(RECORDED, SMALL, (1, 1), 1, SPACE)
    assert found is not None and found[0] == 1
    assert estimate(found[1], of_hosts(SMALL, 1, 1)).fits and found[1].offload.is_used and found[1].compiled


def test_a_recorded_training_may_move_to_a_layout_that_no_graph_can_replay() -> None:
    found = for_hosts(RECORDED, SMALL, (2, 2), 1, SPACE.model_copy(update={"zero": (3,)}))
    assert found is not None and found[1].zero == 3 and not found[1].cuda_graphs and found[1].check() == []
