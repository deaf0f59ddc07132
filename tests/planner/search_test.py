import pytest

from cost.plans import mt_nlg, small
from trivium.cost.estimate import estimate
from trivium.cost.hardware import machine_named, this_machine
from trivium.errors import ConfigError
from trivium.plan.precision import Precision
from trivium.planner.config import SearchSpace
from trivium.planner.search import choose

HERE = this_machine(2, 8 << 30)


def test_plans_that_fit_come_first_and_the_fastest_of_them_leads():
    ranking = choose(small().model, small().batch, HERE, ranks=8)
    finalists = ranking[: SearchSpace().finalists]
    assert [r.estimate.fits for r in ranking] == sorted((r.estimate.fits for r in ranking), reverse=True)
    assert finalists[0].estimate.seconds == min(r.estimate.seconds for r in finalists)


def test_the_winner_is_no_slower_than_any_plan_simulated_in_full():
    plan = small()
    space = SearchSpace(micro=(1, 2), recompute=("none",), finalists=1000)
    ranking = choose(plan.model, plan.batch, HERE, ranks=4, space=space)
    seconds = [estimate(r.plan, HERE).seconds for r in ranking]
    assert ranking[0].estimate.seconds == pytest.approx(min(seconds), rel=1e-5)


def test_where_nothing_fits_the_smallest_is_first_and_says_so():
    ranking = choose(small().model, small().batch, this_machine(2, 1 << 20), ranks=8)
    assert not any(r.estimate.fits for r in ranking)
    totals = [r.estimate.memory.total for r in ranking]
    assert totals == sorted(totals)


def test_for_mt_nlg_the_search_keeps_tensor_inside_the_node_and_beats_the_published_choice():
    plan = mt_nlg()
    space = SearchSpace(micro=(1,), recompute=("attention", "layer"), chunks=(3,), finalists=4)
    selene = machine_named("selene")
    ranking = choose(
        plan.model, plan.batch, selene, ranks=2240, space=space, precision=Precision(weights="bf16")
    )
    best = ranking[0]
    assert best.plan.layout.tensor == 8 and best.estimate.fits
    assert best.estimate.seconds < estimate(plan, selene).seconds


def test_ranks_that_no_layout_divides_are_refused_with_the_numbers():
    with pytest.raises(ConfigError, match=r"no layout of 13 ranks is legal.*layers 8, heads 4.*sequences 32"):
        choose(small().model, small().batch, HERE, ranks=13)


def test_more_ranks_than_devices_are_refused():
    with pytest.raises(ConfigError, match="5000 ranks"):
        choose(mt_nlg().model, mt_nlg().batch, machine_named("selene"), ranks=5000)
