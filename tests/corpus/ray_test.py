"""The engine on Ray joins clusters that run, and says when nothing comes or a node is lost."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest

from trivium.config import preset_names
from trivium.corpus.daft_engine import _start_ray, watched
from trivium.errors import DataError, MachineError


def forever(*first: tuple[int, str]) -> Iterator[tuple[int, str]]:
    yield from first
    threading.Event().wait()


def test_outcomes_come_as_they_are_and_errors_are_raised() -> None:
    def fails() -> Iterator[tuple[int, str]]:
        yield 0, "a"
        raise DataError("page 7 is damaged")

    assert list(watched([(1, "b"), (0, "a")], 2, list)) == [(1, "b"), (0, "a")]
    with pytest.raises(DataError, match="page 7"):
        list(watched(fails(), 2, list))


def test_a_stall_is_told_and_a_lost_node_ends_it_by_name(capsys) -> None:
    asked: list[int] = []

    def lost() -> list[str]:
        asked.append(1)
        return ["node-7 (10.0.0.7)"] if len(asked) > 8 else []

    with pytest.raises(MachineError, match=r"since Ray lost node node-7 \(10\.0\.0\.7\) \(1 of 2 parts done\)"):
        list(watched(forever((0, "a")), 2, lost, stall_seconds=0.05, lost_seconds=0.2))
    told = capsys.readouterr().err.splitlines()
    assert "no result from Ray for" in told[0] and "(1 of 2 parts done)" in told[0]
    assert sum("Ray lost node node-7" in line for line in told) == 1


JOINS = """
import sys
import ray
from trivium.cli.tokenize import chosen_engine
from trivium.config import preset_names, read_preset
engine = chosen_engine("ray", 2)
nodes = [node for node in ray.nodes() if node["Alive"]]
names = preset_names()
found = engine.map(read_preset, names, lambda done: None)
assert found == [read_preset(name) for name in names]
print(len(nodes), len(found))
"""


@pytest.mark.broad
def test_a_cluster_of_two_nodes_is_joined() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=1, include_dashboard=False)
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        environment = os.environ | {"RAY_ADDRESS": cluster.address}
        ran = subprocess.run(
            [sys.executable, "-c", JOINS], env=environment, capture_output=True, text=True, timeout=240
        )
    finally:
        cluster.shutdown()
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.split() == ["2", str(len(preset_names()))]


class FakeRay(ModuleType):
    """Ray's module, of which a cluster can be joined at some addresses; it keeps how it was asked."""

    def __init__(self, clusters: Sequence[str]) -> None:
        super().__init__("ray")
        self.clusters, self.asked = clusters, list[dict[str, Any]]()

    def is_initialized(self) -> bool:
        return False

    def init(self, **given: Any) -> None:
        self.asked.append(given)
        if given["address"] not in ("local", *self.clusters):
            raise ConnectionError("could not find any running Ray instance")
        if given["address"] != "local" and "num_cpus" in given:
            raise ValueError("When connecting to an existing cluster, num_cpus must not be provided.")


@pytest.mark.parametrize(
    ("clusters", "address", "joins"),
    [
        (["10.0.0.1:6379"], "10.0.0.1:6379", "10.0.0.1:6379"),  # RAY_ADDRESS
        (["auto"], None, "auto"),  # `ray start --head` on this machine
        ([], None, "local"),
        (["auto"], "local", "local"),
    ],
)
def test_a_cluster_is_joined_with_its_own_processors_and_otherwise_one_is_started(
    monkeypatch, clusters: list[str], address: str | None, joins: str
) -> None:
    fake = FakeRay(clusters)
    monkeypatch.setitem(sys.modules, "ray", fake)
    _start_ray(2, None, address)
    assert fake.asked[-1]["address"] == joins
    assert fake.asked[-1].get("num_cpus") == (2 if joins == "local" else None)


def test_an_address_at_which_there_is_no_cluster_is_refused_by_name(monkeypatch) -> None:
    fake = FakeRay([])
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(MachineError, match="RAY_ADDRESS=10.0.0.9:1: no Ray cluster can be joined there"):
        _start_ray(2, None, "10.0.0.9:1")
    assert len(fake.asked) == 1, "none is started in its place"
