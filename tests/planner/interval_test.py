import math

import pytest
from scipy.optimize import minimize_scalar

from trivium.errors import ConfigError
from trivium.planner.interval import checkpoint_interval, daly_seconds, expected_waste, young_seconds

HOUR = 3600.0
TIMES = [(30.0, 6 * HOUR), (120.0, 24 * HOUR), (600.0, 4 * HOUR), (1200.0, 2 * HOUR)]


def minimum(waste, mean):
    return minimize_scalar(waste, bounds=(1e-3, 5 * mean), method="bounded", options={"xatol": 1e-6})


def first_order_waste(interval: float, save: float, mean: float) -> float:
    """Young's: fraction of the work lost to saving, and to redoing half an interval per failure."""
    return save / interval + interval / (2 * mean)


@pytest.mark.parametrize(("save", "mean"), TIMES)
def test_youngs_interval_minimises_the_first_order_waste(save, mean):
    found = minimum(lambda t: first_order_waste(t, save, mean), mean)
    assert young_seconds(save, mean) == pytest.approx(found.x, rel=1e-3)


@pytest.mark.parametrize(("save", "mean"), TIMES)
@pytest.mark.parametrize("restart", [0.0, 900.0])
def test_dalys_interval_minimises_the_expected_time(save, mean, restart):
    best = minimum(lambda t: expected_waste(t, save, mean, restart), mean)
    assert daly_seconds(save, mean) == pytest.approx(best.x, rel=0.01)
    here = expected_waste(daly_seconds(save, mean), save, mean, restart)
    assert here <= best.fun + 1e-4
    assert here <= expected_waste(young_seconds(save, mean), save, mean, restart) + 1e-12


def test_the_expected_waste_is_what_a_simulated_job_loses():
    """A job that draws its failures at random, against the formula."""
    import numpy as np

    save, mean, restart, interval, segments = 60.0, 3600.0, 300.0, 700.0, 20_000
    random = np.random.default_rng(3)
    spent, done = 0.0, 0
    failure = random.exponential(mean)
    while done < segments:
        if failure >= interval + save:
            failure -= interval + save
            spent += interval + save
            done += 1
            continue
        spent += failure
        failure = random.exponential(mean)
        while failure < restart:  # it may fail again before it is back
            spent += failure
            failure = random.exponential(mean)
        failure -= restart
        spent += restart
    assert spent / (segments * interval) - 1 == pytest.approx(expected_waste(interval, save, mean, restart), rel=0.03)


def test_both_agree_where_saving_is_short_and_failures_are_rare():
    found = checkpoint_interval(1.0, 1e7)
    assert found.daly_seconds == pytest.approx(found.young_seconds, rel=1e-3)


def test_more_failures_never_lengthen_the_interval_and_waste_more():
    found = [checkpoint_interval(60.0, hours * HOUR) for hours in (48, 24, 12, 6, 3)]
    assert [f.daly_seconds for f in found] == sorted((f.daly_seconds for f in found), reverse=True)
    assert [f.wasted_fraction for f in found] == sorted(f.wasted_fraction for f in found)


def test_a_save_longer_than_the_time_between_failures_still_has_an_answer():
    assert daly_seconds(10.0, 4.0) == 4.0
    assert expected_waste(1e6, 1.0, 1.0, 0.0) == math.inf


def test_an_interval_in_steps_is_at_least_one():
    found = checkpoint_interval(1.0, 50.0)
    assert found.steps(1e6) == 1
    assert found.steps(1.0) == round(found.daly_seconds)


@pytest.mark.parametrize(
    ("save", "mean", "says"), [(0, 1, "save is 0"), (1, -2, "failures is -2"), (1, 1e300, r"is 1e\+300 s")]
)
def test_times_beyond_sense_are_refused(save, mean, says):
    with pytest.raises(ConfigError, match=says):
        checkpoint_interval(save, mean)


def test_a_job_that_fails_faster_than_it_saves_is_refused():
    with pytest.raises(ConfigError, match="more than 100 times its work"):
        checkpoint_interval(1e8, 3.6)
