"""A rank that holds up the others is told by rank and phase; ranks that wait for it are not."""

import time
from pathlib import Path

import pytest

from trivium.chaos.scene import job, plan, write_tokens
from trivium.model.block import Block
from trivium.plan.layout import Layout
from trivium.training import run as loop
from trivium.training.job import start
from trivium.training.metrics import EVENTS, read
from trivium.training.slow_ranks import slow_among


def slow_down(monkeypatch, phase: str) -> None:
    """Rank 1 takes long to read, or in each layer's forward."""
    right = loop._Loop.__init__

    def with_delay(self, given, mesh, duty) -> None:
        right(self, given, mesh, duty)
        if mesh.rank != 1:
            return
        if phase == "reading":
            reader = self._reader
            self._reader = lambda data: lambda *which: (time.sleep(0.1), reader(data)(*which))[1]
        else:
            forward = Block.forward
            Block.forward = lambda *given, **named: (time.sleep(0.02), forward(*given, **named))[1]

    monkeypatch.setattr(loop._Loop, "__init__", with_delay)


@pytest.mark.parametrize(("phase", "layout"), [("reading", {"data": 2}), ("stages", {"tensor": 2})])
def test_a_slow_rank_is_told_by_rank_and_phase(tmp_path: Path, monkeypatch, capfd, phase, layout) -> None:
    slow_down(monkeypatch, phase)
    given = job(
        write_tokens(tmp_path), tmp_path / "run", plan(layout), steps=6, supervision={"slow_every": 3}
    )
    start(given)
    told = [(e["rank"], e["phase"]) for e in read(tmp_path / "run" / EVENTS) if e["event"] == "slow rank"]
    assert (1, phase) in told, told
    assert f"rank 1 is slow: {phase} took it" in capfd.readouterr().err


def test_ranks_are_compared_with_those_that_have_the_same_stages() -> None:
    layout = Layout(pipeline=2, data=3)
    even = {"stages": [1.0, 1.1, 1.0, 5.0, 5.0, 5.2]}
    assert slow_among(even, layout, 1.5) == []
    (slow,) = slow_among({"stages": [1.0, 1.1, 1.0, 5.0, 9.0, 5.2]}, layout, 1.5)
    assert (slow.rank, slow.phase, slow.seconds, slow.peers) == (4, "stages", 9.0, 5.0)


def test_a_phase_that_takes_next_to_nothing_is_never_told() -> None:
    table = {"reading": [0.001, 0.003], "stages": [1.0, 1.0]}
    assert slow_among(table, Layout(data=2), 1.5) == []


def test_a_lone_rank_is_never_slow() -> None:
    assert slow_among({"stages": [3.0]}, Layout(), 1.5) == []
