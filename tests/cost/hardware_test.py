import pytest

from trivium.cost.hardware import MACHINES, machine_named, this_machine
from trivium.errors import ConfigError


def test_selene_has_the_figures_of_the_paper():
    selene = machine_named("selene")
    assert (selene.nodes, selene.devices_per_node, selene.devices) == (560, 8, 4480)
    assert selene.devices * selene.peak.bf16 == pytest.approx(1.4e18, rel=0.01)


def test_an_unknown_machine_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="'selen'.*did you mean 'selene'"):
        machine_named("selen")


def test_every_named_machine_is_found_by_its_name():
    assert all(machine_named(machine.name) is machine for machine in MACHINES)


def test_a_ring_inside_a_node_uses_the_node_link_and_one_across_nodes_the_fabric():
    selene = machine_named("selene")
    assert selene.link_between(tuple(range(8))) == selene.node_link
    assert selene.link_between((7, 8)) == selene.fabric_link


def test_processes_on_a_cpu_share_cores_and_memory_and_ranks_on_gpus_do_not():
    cpu, selene = this_machine(2, 8 << 30), machine_named("selene")
    assert (cpu.crowding(1), cpu.crowding(8), selene.crowding(8)) == (1, 4, 1)
    assert cpu.memory_per_rank(8) == 1 << 30
    assert selene.memory_per_rank(8) == selene.memory_bytes
    # One rank alone has every core; eight ranks run one core each at full speed, in turn.
    assert cpu.flops_per_second("fp32", 1) == 2 * cpu.flops_per_second("fp32", 8)


def test_more_ranks_than_devices_is_a_problem_only_where_a_device_is_exclusive():
    assert "4481 ranks" in machine_named("selene").problems(4481)[0]
    assert this_machine(2, 1 << 30).problems(8) == []


def test_a_machine_without_cores_is_refused():
    with pytest.raises(ConfigError, match="0 cores"):
        this_machine(0, 1 << 30)
