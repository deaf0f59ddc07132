from trivium.plan.batch import Ramp
from trivium.plan.parameters import count
from trivium.planner.published import mt_nlg_plan, published_for, published_runs


def test_every_published_plan_is_legal_on_its_number_of_devices():
    assert [run.plan.check() for run in published_runs()] == [[], [], []]
    assert [run.plan.layout.world_size for run in published_runs()] == [2240, 2800, 3360]


def test_the_plan_has_530_billion_parameters():
    assert round(count(mt_nlg_plan().model) / 1e9, 1) == 529.6


def test_a_published_figure_is_shown_only_beside_its_own_plan_and_machine():
    assert published_for(mt_nlg_plan(), "selene").seconds == 60.1
    assert published_for(mt_nlg_plan(), "dgx-h100") is None
    assert published_for(mt_nlg_plan().model_copy(update={"zero": 0}), "selene") is None


def test_a_ramp_does_not_hide_the_published_figure():
    plan = mt_nlg_plan()
    ramp = Ramp(start=32, increment=32, samples=5_859_375)
    ramped = plan.model_copy(update={"batch": plan.batch.model_copy(update={"ramp": ramp})})
    assert published_for(ramped, "selene").seconds == 60.1


def test_mt_nlg_is_predicted_within_a_twentieth_though_no_constant_was_learned_from_it():
    """DeepSpeed's constants come from BLOOM's runs, the others from Megatron-LM's and FSDP's."""
    errors = [run.predicted_seconds / run.seconds - 1 for run in published_runs()]
    assert max(map(abs, errors)) < 0.05
