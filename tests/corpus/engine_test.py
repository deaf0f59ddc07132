"""Engines return results in order and errors as they were raised, and give the same corpus wherever tasks run."""

import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from corpus.kills import digests
from trivium.config import preset_names, read_preset
from trivium.corpus import daft_engine
from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.corpus.daft_engine import Daft, _start_ray, watched
from trivium.corpus.engine import Here
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.pipeline import curate
from trivium.errors import ConfigError, DataError, MachineError


@pytest.mark.parametrize("light", [True, False])
@pytest.mark.parametrize("where", ["here", "native"])
def test_results_are_in_order_and_errors_keep_their_type(where, light):
    engine = Daft("native", workers=2) if where == "native" else Here()
    names, done = preset_names(), []
    # The task is a function that workers can import.
    assert engine.map(read_preset, names, done.append, light=light) == [read_preset(n) for n in names]
    assert done == list(range(1, len(names) + 1))
    assert engine.map(read_preset, [], done.append, light=light) == []
    with pytest.raises(ConfigError, match="there is no preset 'dem'; did you mean 'demo'?"):
        engine.map(read_preset, [*names, "dem"], done.append, light=light)
    with pytest.raises(FileNotFoundError) as missing:
        engine.map(os.stat, ["/nowhere/at all"], done.append, light=light)
    assert missing.value.filename == "/nowhere/at all"


@pytest.mark.parametrize("light", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_generators_are_closed_after_an_error(light, workers, monkeypatch):
    """Daft's generators wait for its own thread as they end, and the garbage collector may run in that thread."""
    opened, right = [], daft_engine._rows

    def rows(*arguments):
        opened.append(right(*arguments))
        return opened[-1]

    monkeypatch.setattr(daft_engine, "_rows", rows)
    with pytest.raises(ConfigError) as held:  # the traceback keeps the frames alive
        Daft("native", workers=workers).map(read_preset, ["dem", *preset_names()], lambda done: None, light=light)
    assert held.value and opened
    assert all(inspect.getgeneratorstate(each) == inspect.GEN_CLOSED for each in opened)


@pytest.mark.broad
def test_corpus_does_not_depend_on_engine_or_number_of_workers(tmp_path):
    (tmp_path / "raw").mkdir()
    small = HarvestConfig(max_bytes=600_000, evaluation_items=30, shard_bytes=150_000)
    harvest(small, tmp_path / "raw", seed=3)
    outputs = []
    for number, engine in enumerate((Here(), Daft("native", workers=2), Daft("native", workers=1))):
        out = tmp_path / str(number)
        out.mkdir()
        curate(CurateConfig(shard_bytes=200_000), tmp_path / "raw", out, seed=3, engine=engine)
        outputs.append(digests(out))
    assert len(outputs[0]) > 7
    assert outputs[0] == outputs[1] == outputs[2]


def test_unknown_engine_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'native'"):
        Daft("nativ", workers=1)


# The worker reads its parent's id before it prints, because its parent ends as soon as it has read the line.
WORKER = """
import os
from trivium.corpus.engine import end_with
parent = os.getppid()
print(1, flush=True)
end_with(parent)
"""
STARTER = f"""
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdout=subprocess.PIPE)
worker.stdout.readline()
print(worker.pid)
"""


def test_worker_ends_soon_after_its_parent_was_killed():
    """Otherwise it would work for hours in parallel with the workers of the resumed process."""
    pid = subprocess.check_output([sys.executable, "-c", STARTER], text=True, timeout=60)
    place, until = Path("/proc", pid.strip()), time.monotonic() + 60
    while place.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not place.exists()


def failing() -> Iterator[tuple[int, str]]:
    yield 0, "a"
    raise DataError("page 7 is damaged")


def stalled() -> Iterator[tuple[int, str]]:
    yield 0, "a"
    threading.Event().wait()


def test_watched_outcomes_are_unchanged_and_errors_are_raised() -> None:
    assert list(watched([(1, "b"), (0, "a")], 2, dict)) == [(1, "b"), (0, "a")]
    with pytest.raises(DataError, match="page 7"):
        list(watched(failing(), 2, dict))


def test_stall_is_reported_and_a_lost_node_ends_the_run_by_name(capsys) -> None:
    polls: list[int] = []

    def lost() -> dict[str, str]:
        polls.append(1)
        earlier = {"a1": "node-3 (10.0.0.3)"}  # by another command, so that this one is not ended for it
        return {"b2": "node-7 (10.0.0.7)", **earlier} if len(polls) > 8 else earlier

    with pytest.raises(MachineError, match=r"since Ray lost node node-7 \(10\.0\.0\.7\) \(1 of 2 parts done\)"):
        list(watched(stalled(), 2, lost, stall_seconds=0.05, lost_seconds=0.2))
    lines = capsys.readouterr().err.splitlines()
    assert "no result from Ray for" in lines[0] and "(1 of 2 parts done)" in lines[0]
    assert sum("Ray lost node node-7" in line for line in lines) == 1 and not any("node-3" in line for line in lines)


@pytest.mark.parametrize(("wanted", "at_once"), [(None, 3), (8, 3), (2, 2)])
def test_on_ray_no_more_work_is_begun_than_its_nodes_have_processors(monkeypatch, wanted, at_once) -> None:
    engine = object.__new__(Daft)  # without Ray
    engine.runner, engine.workers = "ray", wanted
    nodes = [{"Alive": True, "Resources": {"CPU": 1.0}}, {"Alive": True, "Resources": {"CPU": 2.0}}]
    lost = {"Alive": False, "Resources": {"CPU": 64.0}}
    monkeypatch.setattr(daft_engine, "_nodes", lambda: [*nodes, lost, {"Alive": True, "Resources": {}}])
    assert engine._at_once() == at_once


JOINS = """
import ray
from trivium.cli.tokenize import chosen_engine
from trivium.config import preset_names, read_preset
engine = chosen_engine("ray", 2)
nodes = [node for node in ray.nodes() if node["Alive"]]
names = preset_names()[:3]
results = engine.map(read_preset, names, lambda done: None)
assert results == [read_preset(name) for name in names]
print(len(nodes), len(results))
"""


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.broad), pytest.param(2, marks=pytest.mark.slow)])
def test_a_cluster_is_joined_and_gives_results_in_order(nodes: int) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, include_dashboard=False)
        cluster.wait_for_nodes()
        environment = os.environ | {"RAY_ADDRESS": cluster.address}
        ran = subprocess.run(
            [sys.executable, "-c", JOINS], env=environment, capture_output=True, text=True, timeout=240
        )
    finally:
        cluster.shutdown()
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.split() == [str(nodes), "3"]


class FakeRay(ModuleType):
    """Ray's module with clusters at some addresses; it stores the arguments of `init`."""

    def __init__(self, clusters: Sequence[str]) -> None:
        super().__init__("ray")
        self.clusters, self.calls = clusters, list[dict[str, Any]]()

    def is_initialized(self) -> bool:
        return False

    def init(self, **given: Any) -> None:
        self.calls.append(given)
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
def test_running_cluster_is_joined_and_otherwise_one_is_started(monkeypatch, clusters, address, joins) -> None:
    fake = FakeRay(clusters)
    monkeypatch.setitem(sys.modules, "ray", fake)
    _start_ray(2, None, address)
    assert fake.calls[-1]["address"] == joins
    assert fake.calls[-1].get("num_cpus") == (2 if joins == "local" else None)


def test_address_without_a_cluster_is_refused_by_name(monkeypatch) -> None:
    fake = FakeRay([])
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(MachineError, match="RAY_ADDRESS=10.0.0.9:1: no Ray cluster can be joined there"):
        _start_ray(2, None, "10.0.0.9:1")
    assert len(fake.calls) == 1, "none is started instead"
