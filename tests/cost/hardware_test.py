import pytest

from cost.plans import MT_NLG
from trivium.config import build
from trivium.cost.collectives import all_gather_seconds, link_of_group
from trivium.cost.estimate import estimate
from trivium.cost.hardware import USABLE_MEMORY_SHARE, machine_from_file, machine_named, machine_names, this_machine
from trivium.errors import ConfigError
from trivium.plan.plan import Plan


def test_selene_has_the_figures_of_the_paper():
    selene = machine_named("selene")
    assert (selene.nodes, selene.devices_per_node, selene.devices) == (560, 8, 4480)
    assert selene.devices * selene.peak.bf16 == pytest.approx(1.4e18, rel=0.01)


def test_an_unknown_machine_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="'selen'.*did you mean 'selene'"):
        machine_named("selen")


def test_processes_on_a_cpu_share_cores_and_memory_and_ranks_on_gpus_do_not():
    cpu, selene = this_machine(2, 8 << 30), machine_named("selene")
    assert (cpu.crowding(1), cpu.crowding(8), selene.crowding(8)) == (1, 4, 1)
    assert cpu.memory_per_rank(8) == 1 << 30
    assert selene.memory_per_rank(8) == selene.memory_bytes


def test_more_ranks_than_devices_is_a_problem_only_where_a_device_is_exclusive():
    assert "4481 ranks" in machine_named("selene").problems(4481)[0]
    assert this_machine(2, 1 << 30).problems(8) == []


def test_a_machine_without_cores_is_refused():
    with pytest.raises(ConfigError, match="0 cores"):
        this_machine(0, 1 << 30)


def test_every_shipped_machine_says_where_its_figures_come_from():
    for name in machine_names():
        sources = machine_named(name).sources
        assert {"peak", "memory_bandwidth", "node_link"} <= set(sources), name
        assert all(sources.values())


def test_a_machine_file_may_start_from_a_shipped_machine(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("base: dgx-h100\nname: mine\nnodes: 3\nconstants: {fabric: 0.5}\n")
    mine, base = machine_from_file(path), machine_named("dgx-h100")
    assert (mine.name, mine.nodes, mine.constants) == ("mine", 3, {"fabric": 0.5})
    assert mine.peak == base.peak and mine.sources == base.sources


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("base: dgx-h10\n", "did you mean 'dgx-h100'"),
        ("base: dgx-h100\nnode: 3\n", "node: there is no such key; did you mean 'nodes'"),
        ("base: dgx-h100\nnodes: 0\n", "nodes is 0"),
        ("base: dgx-h100\nmemory_bandwidth: 1e-300\n", "memory_bandwidth is .*greater than or equal to 0.000001"),
        ("base: dgx-h100\npeak:\n  bf16: 1.0e+300\n", "peak.bf16 is 1e.300; .*less than or equal to 1000000"),
        ("base: dgx-h100\nfabric_link:\n  latency_seconds: 1.0e+300\n", "latency_seconds is .*less than or equal"),
        ("base: dgx-h100\nfabric_link: 3\n", "fabric_link is 3; .*as fabric_link.FIELD: bandwidth, efficiency"),
        ("base: this-machine\nnodes: 4\n", "sharing is 'shared': its ranks share .* nodes is 4; set nodes to 1"),
        ("name: mine\n", "peak: .*none was given; .*another machine's: base: NAME"),
        ("- 1\n", "holds a list"),
        ("a: [\n", "is not YAML"),
    ],
)
def test_a_wrong_machine_file_is_refused_with_the_remedy(tmp_path, text, told):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"mine.yaml.*{told}".replace("[", "\\[")):
        machine_from_file(path)


def test_the_number_of_nodes_is_settable_and_positive():
    assert machine_named("selene").with_nodes(280).devices == 2240
    with pytest.raises(ConfigError, match="nodes is 0"):
        machine_named("selene").with_nodes(0)


def test_a_host_whose_cores_ranks_share_is_one_node():
    here = this_machine(2, 8 << 30)
    assert here.with_nodes(1) == here
    with pytest.raises(ConfigError, match="share the devices of one host, and nodes is 4"):
        here.with_nodes(4)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("constants", "{memory: 0}", "memory must be between 0.025 and 2"),
        ("constants", "{gemm_ramp: .nan}", "gemm_ramp"),
        ("constants", "{gemm_ramq: 300}", "there is no constant 'gemm_ramq'; did you mean 'gemm_ramp'"),
        ("memory_bandwidth", ".inf", "memory_bandwidth"),
        ("peak", "{bf16: .inf}", "peak.bf16"),
    ],
)
def test_figures_of_a_machine_that_no_machine_has_are_refused(tmp_path, field, value, said):
    file = tmp_path / "mine.yaml"
    file.write_text(f"base: dgx-h100\n{field}: {value}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        machine_from_file(file)
    assert said in str(refused.value)


def test_a_fabric_that_reaches_less_of_its_bandwidth_takes_longer(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("base: selene\nfabric_link: {efficiency: 0.3}\n", encoding="utf-8")
    poor, selene = machine_from_file(file), machine_named("selene")
    seconds = [float(all_gather_seconds(1e9, 64, link_of_group(m, 64, 8, 1.0))) for m in (poor, selene)]
    assert seconds[0] > 2 * seconds[1]


def test_what_an_estimate_counts_may_take_what_allocator_and_libraries_leave():
    selene, cpu = machine_named("selene"), this_machine(2, 8 << 30)
    assert selene.usable_memory(8) == USABLE_MEMORY_SHARE * selene.memory_bytes
    assert cpu.usable_memory(8) == USABLE_MEMORY_SHARE * (1 << 30)
    plan = build(Plan, MT_NLG)
    held = estimate(plan, selene).memory.total
    selene = selene.model_copy(update={"memory_bytes": int(held / 0.95)})
    priced = estimate(plan, selene)
    assert selene.usable_memory(8) < priced.memory.total < selene.memory_bytes and not priced.fits
