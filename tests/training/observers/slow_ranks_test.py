"""A rank that holds up the others is told by rank and phase; ranks that wait for it are not."""

import statistics
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.scene import job, plan, write_tokens
from trivium.comms.mesh import Mesh
from trivium.model.layers.wiring import Wiring
from trivium.parallel.pipeline.executor import Span
from trivium.plan.layout import Layout
from trivium.plan.schedule import Action, Op
from trivium.seeds import generator_for
from trivium.tokens.samples import TokenDataset
from trivium.training import loop
from trivium.training.config import is_nth
from trivium.training.metrics import EVENTS, read
from trivium.training.observers import slow_ranks
from trivium.training.observers.slow_ranks import LEAST_SHARE, PHASES, SlowRank, Worked, slow_among
from trivium.training.supervision.job import start


def slow_down(monkeypatch, phase: str) -> None:
    """Rank 1 takes long to read, or in each layer's forward."""
    right = loop.Loop.__init__

    def with_delay(self, given, mesh, *more, **named) -> None:
        right(self, given, mesh, *more, **named)
        if mesh.rank != 1:
            return
        if phase == "reading":
            read = TokenDataset.rows
            TokenDataset.rows = lambda *given: (time.sleep(0.1), read(*given))[1]
        else:
            forward = Wiring.forward
            Wiring.forward = lambda *given, **named: (time.sleep(0.02), forward(*given, **named))[1]

    monkeypatch.setattr(loop.Loop, "__init__", with_delay)


@pytest.mark.broad
@pytest.mark.parametrize(("phase", "layout"), [("reading", {"data": 2}), ("stages", {"tensor": 2})])
def test_a_slow_rank_is_told_by_rank_and_phase(tmp_path: Path, monkeypatch, capfd, phase, layout) -> None:
    slow_down(monkeypatch, phase)
    given = job(write_tokens(tmp_path), tmp_path / "run", plan(layout), steps=6, supervision={"slow_every": 3})
    start(given)
    told = [(e["rank"], e["phase"]) for e in read(tmp_path / "run" / EVENTS) if e["event"] == "slow rank"]
    assert (1, phase) in told, told
    assert f"rank 1 is slow in `{phase}`: " in capfd.readouterr().err


def test_ranks_are_compared_with_those_that_have_the_same_stages() -> None:
    layout = Layout(pipeline=2, data=3)
    even = {"stages": [1.0, 1.1, 1.0, 5.0, 5.0, 5.2]}
    assert slow_among(even, layout, 1.5) == []
    (slow,) = slow_among({"stages": [1.0, 1.1, 1.0, 5.0, 9.0, 5.2]}, layout, 1.5)
    assert (slow.rank, slow.phase, slow.seconds, slow.peers) == (4, "stages", 9.0, 5.0)


def test_a_phase_that_takes_next_to_nothing_is_never_told() -> None:
    table = {"reading": [0.001, 0.003], "stages": [1.0, 1.0]}
    assert slow_among(table, Layout(data=2), 1.5) == []


def test_a_rank_has_worked_by_step_and_phase_what_it_did_not_wait(monkeypatch) -> None:
    """Since the last comparison: waits of tensor ranks are in its stages, those of replicas in its update."""
    mesh = Mesh.single()
    monkeypatch.setattr(slow_ranks, "slow_among", lambda table, layout, factor: table)
    forward, sent = Span(Action(Op.FORWARD, 0, 0), 0.0, 3.0), Span("sent", 3.0, 9.0)
    result = SimpleNamespace(run=SimpleNamespace(spans=[forward, sent]), update_seconds=2.0)
    worked = Worked(mesh)
    for waited in (1.0, 0.0):
        mesh.tensor.waited[0] += waited
        mesh.replicas.waited[0] += waited / 2
        worked.add(result)
    assert worked.slow_ranks(1.5) == {"reading": [0.0], "stages": [2.5], "update": [1.75]}
    mesh.tensor.waited[0] += 99.0
    worked.add(result)
    assert worked.slow_ranks(1.5) == {"reading": [0.0], "stages": [0.0], "update": [2.0]}


def test_ranks_are_compared_at_every_nth_step_and_at_none_where_that_is_0() -> None:
    assert [[step for step in range(1, 7) if is_nth(step, every)] for every in (0, 1, 3)] == [
        [],
        [1, 2, 3, 4, 5, 6],
        [3, 6],
    ]


def test_a_lone_rank_is_never_slow() -> None:
    assert slow_among({"stages": [3.0]}, Layout(), 1.5) == []


def usual_of_peers(seconds: list[float], rank: int, layout: Layout) -> float:
    peers = [r for r in layout.peers(rank, "data", "context", "tensor") if r != rank]
    peers = peers or [r for r in range(layout.world_size) if r != rank]
    return statistics.median_low([seconds[r] for r in peers])


@pytest.mark.parametrize(
    "degrees", [{"data": 6, "tensor": 2}, {"pipeline": 3, "data": 2}, {"pipeline": 5}, {"context": 2, "data": 4}]
)
def test_a_rank_is_compared_with_the_median_of_all_its_peers_but_itself(degrees) -> None:
    layout, draw = Layout(**degrees), generator_for(1, "slow", str(degrees))
    table = {phase: draw.integers(1, 9, layout.world_size).astype(float).tolist() for phase in PHASES}
    found = slow_among(table, layout, 1.5)
    expected = [
        SlowRank(rank, phase, seconds[rank], usual)
        for rank in range(layout.world_size)
        for phase, seconds in table.items()
        if seconds[rank] > 1.5 * (usual := usual_of_peers(seconds, rank, layout))
        and seconds[rank] - usual > LEAST_SHARE * sum(each[rank] for each in table.values())
    ]
    assert found == expected and found


def test_thousands_of_peers_are_compared_in_a_moment() -> None:
    layout, begin = Layout(data=2240), time.monotonic()
    even = [1.0] * 2239
    (slow,) = slow_among(dict.fromkeys(PHASES[:1], [*even, 5.0]), layout, 1.5)
    assert slow.rank == 2239
    assert time.monotonic() - begin < 3, "comparing every rank with every other takes a minute"


def test_of_thousands_of_slow_ranks_those_that_lose_most_are_told(tmp_path: Path, monkeypatch, capfd) -> None:
    many = [SlowRank(rank, "stages", 2.0 + rank, 1.0) for rank in range(1000)]
    monkeypatch.setattr(slow_ranks.Worked, "slow_ranks", lambda self, factor: many)
    start(job(write_tokens(tmp_path), tmp_path / "run", plan({}), steps=2, supervision={"slow_every": 2}))
    told = [e["rank"] for e in read(tmp_path / "run" / EVENTS) if e["event"] == "slow rank"]
    assert told == list(range(999, 991, -1))
    said = capfd.readouterr().err.splitlines()
    assert "step 2: 1,000 ranks are slow" in said[0] and len(said) == 9
