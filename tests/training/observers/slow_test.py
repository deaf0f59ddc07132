"""Slow ranks and slow links are reported, but not the ranks that wait for a slow one."""

import statistics
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.scene import job, plan, write_tokens
from trivium.comms.mesh import Group, Mesh
from trivium.parallel.pipeline.executor import Span
from trivium.plan.batch import Batch
from trivium.plan.layout import Layout
from trivium.plan.schedule import Action, Op
from trivium.seeds import generator_for
from trivium.training.metrics import EVENTS, read
from trivium.training.observers import slow
from trivium.training.observers.slow import (
    COLUMNS,
    LEAST_SHARE,
    PHASES,
    Slow,
    SlowLink,
    SlowRank,
    slow_links,
    slow_ranks,
)
from trivium.training.supervision.job import start


def events(out: Path, kind: str) -> list[dict]:
    return [e for e in read(out / EVENTS) if e["event"] == kind]


@pytest.mark.parametrize(
    ("layout", "table", "expected"),
    [
        ({"pipeline": 2, "data": 3}, {"stages": [1.0, 1.1, 1.0, 5.0, 5.0, 5.2]}, []),  # peers have the same stages
        ({"pipeline": 2, "data": 3}, {"stages": [1.0, 1.1, 1.0, 5.0, 9.0, 5.2]}, [SlowRank(4, "stages", 9.0, 5.0)]),
        ({"data": 2}, {"reading": [0.001, 0.003], "stages": [1.0, 1.0]}, []),  # a phase of almost no time
        ({}, {"stages": [3.0]}, []),
    ],
)
def test_rank_is_slow_compared_with_its_peers(layout, table, expected) -> None:
    assert slow_ranks(table, Layout(**layout), 1.5) == expected


@pytest.mark.parametrize(
    "degrees", [{"data": 6, "tensor": 2}, {"pipeline": 3, "data": 2}, {"pipeline": 5}, {"context": 2, "data": 4}]
)
def test_rank_is_compared_with_the_median_of_its_peers_without_itself(degrees) -> None:
    layout, draw = Layout(**degrees), generator_for(1, "slow", str(degrees))
    table = {phase: draw.integers(1, 9, layout.world_size).astype(float).tolist() for phase in PHASES}

    def usual(seconds: list[float], rank: int) -> float:
        peers = [r for r in layout.peers(rank, "data", "context", "tensor") if r != rank]
        peers = peers or [r for r in range(layout.world_size) if r != rank]
        return statistics.median_low([seconds[r] for r in peers])

    found = slow_ranks(table, layout, 1.5)
    expected = {
        SlowRank(rank, phase, seconds[rank], usual(seconds, rank))
        for rank in range(layout.world_size)
        for phase, seconds in table.items()
        if seconds[rank] > 1.5 * usual(seconds, rank)
        and seconds[rank] - usual(seconds, rank) > LEAST_SHARE * sum(each[rank] for each in table.values())
    }
    assert set(found) == expected and found
    assert found == sorted(found, key=lambda each: each.peers - each.seconds)


def test_comparing_thousands_of_peers_takes_a_moment() -> None:
    begin = time.thread_time()
    (found,) = slow_ranks({"reading": [*[1.0] * 2239, 5.0]}, Layout(data=2240), 1.5)
    assert found.rank == 2239 and time.thread_time() - begin < 3


def test_waits_are_not_work(monkeypatch) -> None:
    """Waits of tensor ranks are in a rank's stages, those of replicas in its update."""
    monkeypatch.setattr(slow, "slow_ranks", lambda table, layout, factor: table)
    monkeypatch.setattr(slow, "slow_links", lambda table, *more: table)
    mesh = Mesh.single()
    forward, sent = Span(Action(Op.FORWARD, 0, 0), 1.0, 4.0), Span("sent", 4.0, 9.0)
    result = SimpleNamespace(run=SimpleNamespace(spans=[forward, sent]), update_seconds=2.0)
    observer = Slow(mesh)
    for waited in (1.0, 0.0):
        mesh.tensor.waited[0] += waited
        mesh.replicas.waited[0] += waited / 2
        mesh.expert.waited[0] += waited / 4
        observer.add(result, 9.0, 8)
    work, waits = observer.compare(1.5)
    assert work == {"reading": [0.0], "stages": [2.375], "update": [1.75]}
    assert (waits["tensor"], waits["gradients"], waits["experts"]) == ([0.5], [0.25], [0.125])
    mesh.tensor.waited[0] += 99.0
    observer.add(result, 9.0, 8)
    assert observer.compare(1.5)[0] == {"reading": [0.0], "stages": [0.0], "update": [2.0]}
    observer.timed(lambda first, count: time.sleep(0.01))(0, 8)
    observer.add(result, 9.0, 8)
    assert observer.compare(1.5)[0]["reading"][0] > 0.005


def test_of_thousands_of_slow_ranks_the_slowest_are_reported(tmp_path: Path, monkeypatch, capfd) -> None:
    many = [SlowRank(rank, "stages", 2.0 + rank, 1.0) for rank in reversed(range(1000))]
    monkeypatch.setattr(slow, "slow_ranks", lambda *given: many)
    start(job(write_tokens(tmp_path), tmp_path / "run", plan({}), steps=2, supervision={"slow_every": 2}))
    assert [e["rank"] for e in events(tmp_path / "run", "slow rank")] == list(range(999, 991, -1))
    lines = capfd.readouterr().err.splitlines()
    assert "step 2: 1,000 ranks are slow" in lines[0] and len(lines) == 9


PIPELINE = SlowLink("pipeline", (0, 1, 2, 3), 16.0, 20.0, 0.0)
TENSOR = SlowLink("tensor", (0, 1), 9.0, 10.0, 0.0)


@pytest.mark.parametrize(
    ("layout", "columns", "step_seconds", "usual", "expected"),
    [
        # A group whose members all wait, and no other.
        (
            {"tensor": 2, "data": 2},
            {"stages": [1.0] * 4, "tensor": [9.0, 9.0, 0.1, 0.1], "gradients": [0.1, 0.1, 9.0, 9.0]},
            10.0,
            0.0,
            [TENSOR],
        ),
        (
            {"data": 4, "expert": 2},
            {"stages": [1.0] * 4, "experts": [0.1, 9.0, 9.0, 9.0], "gradients": [0.1] * 4},
            10.0,
            0.0,
            [SlowLink("experts", (2, 3), 9.0, 10.0, 0.0)],
        ),
        ({"data": 2}, {"stages": [10.0, 1.0], "gradients": [0.0, 9.0]}, 10.0, 1.0, []),  # a slow rank
        ({"pipeline": 4}, {"stages": [1.0] * 4}, 4.0, 0.0, []),  # stages that work one after the other
        ({"pipeline": 4}, {"stages": [1.0] * 4}, 20.0, 0.0, [PIPELINE]),
        # Half a step is reported only if steps became slower.
        ({"data": 2}, {"update": [4.0, 4.0], "gradients": [6.0, 6.0]}, 10.0, 9.0, []),
        (
            {"data": 2},
            {"update": [4.0, 4.0], "gradients": [6.0, 6.0]},
            10.0,
            5.0,
            [SlowLink("gradients", (0, 1), 6.0, 10.0, 5.0)],
        ),
        # Steps of milliseconds are short of work, and not of bandwidth.
        ({"data": 2}, {"stages": [0.001, 0.001], "gradients": [0.02, 0.02]}, 0.021, 0.0, []),
    ],
)
def test_link_is_slow_if_all_members_wait(layout, columns, step_seconds, usual, expected) -> None:
    layout = Layout(**layout)
    table = {name: columns.get(name, [0.0] * layout.world_size) for name in COLUMNS}
    assert slow_links(table, layout, step_seconds, usual, 1.5) == expected


@pytest.mark.parametrize(("layout", "link"), [({"tensor": 2}, "tensor"), ({"data": 2}, "gradients")])
def test_slow_link_is_an_event_with_its_ranks(tmp_path: Path, monkeypatch, capfd, layout: dict, link: str) -> None:
    right = Group.wait_for

    def late(self, work) -> None:
        begin = time.perf_counter()
        time.sleep(0.01)
        self.waited[0] += time.perf_counter() - begin
        right(self, work)

    monkeypatch.setattr(Group, "wait_for", late)
    few_waits = plan(layout).model_copy(update={"batch": Batch(sequences=8, micro=4)})
    start(job(write_tokens(tmp_path), tmp_path / "run", few_waits, steps=2, supervision={"slow_every": 2}))
    (event,) = events(tmp_path / "run", "slow link")
    assert (event["link"], event["ranks"], event["step"]) == (link, [0, 1], 2)
    assert event["seconds"] > 0.75 * event["step_seconds"]
    assert f"step 2: communication is slow: {link} between ranks" in capfd.readouterr().err


@pytest.mark.parametrize("numbers", [[1.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 3.0, 3.0, 3.0, 5.0]])
def test_median_of_others_is_that_of_the_numbers_without_one(numbers: list[float]) -> None:
    for n, own in enumerate(numbers):
        assert slow.median_of_others(numbers, own) == statistics.median_low(numbers[:n] + numbers[n + 1 :])
