import pytest

from cost.plans import mt_nlg, small
from trivium.cost.energy import step_joules
from trivium.cost.estimate import estimate, planned_timeline
from trivium.cost.hardware import machine_named, this_machine
from trivium.errors import ConfigError

SELENE = machine_named("selene")
BARE = SELENE.model_copy(update={"idle_watts": None, "host_watts": None})
HERE = this_machine(2, 8 << 30)


@pytest.mark.parametrize("machine", [BARE, HERE.model_copy(update={"watts": 10.0})], ids=["selene", "here"])
def test_without_other_watts_the_energy_is_watts_times_the_seconds_of_all_devices(machine):
    plan = small()
    price = estimate(plan, machine)
    devices = 2 if machine.sharing == "shared" else plan.layout.world_size
    assert price.joules == pytest.approx(machine.watts * price.seconds * devices)
    assert 0 < price.busy_seconds <= price.seconds * (1 + 1e-12)


def test_a_device_waits_for_what_the_timeline_leaves_idle_and_is_busy_after_it():
    """The sum over all pipeline ranks of a simulated timeline is the oracle; work after it keeps every device busy."""
    plan = mt_nlg()
    price, timeline = estimate(plan, SELENE), planned_timeline(plan, SELENE)
    idle = sum(timeline.duration - busy for busy in timeline.busy) / len(timeline.busy)
    assert price.seconds - price.busy_seconds == pytest.approx(idle, rel=1e-6)
    assert price.joules == pytest.approx(
        2240 * (400 * price.busy_seconds + 60 * idle) + 280 * 3300 * price.seconds, rel=1e-6
    )


def test_hosts_that_are_partly_used_count_whole_and_a_machine_that_is_shared_once():
    powered = SELENE.model_copy(update={"watts": 1.0, "idle_watts": 1.0, "host_watts": 1000.0})
    assert [float(step_joules(powered, ranks, 1.0, 0.5)) for ranks in (1, 8, 9)] == [1001, 1008, 2009]
    shared = HERE.model_copy(update={"watts": 1.0, "host_watts": 1000.0})
    assert [float(step_joules(shared, ranks, 1.0, 0.5)) for ranks in (1, 64)] == [1002, 1002]


def test_a_machine_without_watts_has_no_energy():
    assert estimate(small(), HERE).joules is None
    with pytest.raises(ConfigError, match="names no watts.*add `watts`"):
        step_joules(HERE, 2, 1.0, 1.0)
