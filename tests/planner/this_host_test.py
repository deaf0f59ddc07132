"""A training that this host cannot run is rejected before anything starts, with settings that it can run."""

from dataclasses import replace

import pytest

from trivium.cli.run_config import Given, resolve
from trivium.cost.hardware import machine_named
from trivium.planner.this_host import LONGEST_SECONDS, PROCESS_BYTES, Host, judge, nearest_change

SELENE = machine_named("selene")
GIB = 1 << 30
LAPTOP = Host(cores=2, memory_bytes=16 * GIB)
A100 = ("A100", 80 * GIB)


@pytest.fixture(scope="module")
def gpt():
    return resolve(Given("gpt-125m"))


@pytest.fixture(scope="module")
def demo():
    return resolve(Given("demo"))


def test_a_preset_for_gpus_is_refused_on_two_cores_for_its_memory_and_its_days(gpt):
    found = judge(gpt.plan, gpt.training.steps, LAPTOP, SELENE)
    assert 50 * GIB < found.needed_bytes < 65 * GIB
    assert [p for p in found.problems if "GiB is free" in p] and [p for p in found.problems if "days" in p]
    assert "no accelerator" in found.line


def test_the_demo_runs_on_two_cores(demo):
    assert judge(demo.plan, demo.training.steps, LAPTOP, SELENE).problems == ()


def test_memory_is_refused_exactly_where_all_local_ranks_need_more_than_is_free(demo):
    needed = judge(demo.plan, 1, LAPTOP, SELENE).needed_bytes
    assert judge(demo.plan, 1, replace(LAPTOP, memory_bytes=needed), SELENE).problems == ()
    assert judge(demo.plan, 1, replace(LAPTOP, memory_bytes=needed - 1), SELENE).problems


def test_every_process_counts_beside_its_tensors(demo):
    assert judge(demo.plan, 1, LAPTOP, SELENE).needed_bytes > demo.plan.layout.world_size * PROCESS_BYTES


def test_time_is_refused_exactly_beyond_ten_days(demo):
    second = judge(demo.plan, 1, LAPTOP, SELENE).seconds
    most = int(LONGEST_SECONDS / second)
    assert judge(demo.plan, most, LAPTOP, SELENE).problems == ()
    assert "limit is 10 days" in judge(demo.plan, most + 1, LAPTOP, SELENE).problems[0]


def test_an_accelerator_for_each_rank_makes_the_preset_run(gpt):
    host = replace(LAPTOP, accelerators=(A100,) * 8)
    assert judge(gpt.plan, gpt.training.steps, host, SELENE).problems == ()
    assert "7 accelerators are too few" in judge(gpt.plan, 1, replace(host, accelerators=(A100,) * 7), SELENE).line


def test_the_accelerator_with_the_least_free_memory_decides(gpt):
    small = ("A100", GIB)
    found = judge(gpt.plan, 1, replace(LAPTOP, accelerators=(*(A100,) * 7, small)), SELENE)
    assert "each" in found.problems[0]


def test_speed_of_accelerators_is_not_guessed_from_cores(gpt):
    host = replace(LAPTOP, accelerators=(A100,) * 8)
    assert judge(gpt.plan, gpt.training.steps, host, machine_named("this-machine")).seconds is None


def test_under_torchrun_a_host_needs_memory_for_its_own_ranks_alone(gpt):
    all_of_it = judge(gpt.plan, 1, LAPTOP, SELENE)
    halves = [judge(gpt.plan, 1, replace(LAPTOP, first_rank=first, ranks=4), SELENE) for first in (0, 4)]
    assert sum(half.needed_bytes for half in halves) == all_of_it.needed_bytes
    assert halves[0].seconds < all_of_it.seconds  # two hosts have twice the cores


def test_host_whose_place_is_not_known_needs_the_memory_of_the_fullest_ranks():
    plan = resolve(Given("gpt-125m", ("plan.layout.pipeline=4", "plan.layout.data=2"), 1)).plan
    for host in (LAPTOP, replace(LAPTOP, accelerators=(A100,) * 2)):
        places = [judge(plan, 1, replace(host, first_rank=first, ranks=2), SELENE) for first in range(0, 8, 2)]
        anywhere = judge(plan, 1, replace(host, first_rank=None, ranks=2), SELENE)
        assert len({place.needed_bytes for place in places}) > 1
        assert anywhere.needed_bytes == max(place.needed_bytes for place in places)
        assert anywhere.seconds == places[0].seconds


def test_the_nearest_settings_are_those_that_change_least_and_pass(gpt):
    def judged(change):
        other = resolve(Given("gpt-125m", change.sets, change.ranks))
        return None if other.problems() else judge(other.plan, other.training.steps, LAPTOP, SELENE)

    change = nearest_change(gpt.plan, gpt.training.steps, (8, 4, 1), judged)
    assert judged(change).problems == ()
    assert change.ranks is None, "a smaller micro-batch is nearer than another layout"
    fewer = [each for each in change.sets if not each.startswith("training.steps")]
    assert judge(resolve(Given("gpt-125m", tuple(fewer))).plan, 1, LAPTOP, SELENE).problems == ()


def test_where_nothing_fits_no_settings_are_named(gpt):
    tiny = replace(LAPTOP, memory_bytes=64 << 20)
    assert nearest_change(gpt.plan, 10, (1,), lambda change: judge(gpt.plan, 10, tiny, SELENE)) is None
