"""The loop does the steps, and observers change nothing of them; deletion_test.py runs this without any one of them."""

import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.scene import job, plan, write_tokens
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError, Preempted
from trivium.training.loop import Loop, Observer, TrainingJob
from trivium.training.rank import observers_of
from trivium.training.state import fragments
from trivium.training.supervision.pulse import Post

OFTEN = {"validate_every": 1, "checkpoint_every": 2, "supervision": {"replicas_every": 1, "slow_every": 1}}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("loop"))


class Moments(Observer):
    """Notes every moment, and rewinds to the beginning after the steps `rewinds`."""

    def __init__(self, rewinds: tuple[int, ...] = ()) -> None:
        self.seen, self.rewinds = list[Any](), list(rewinds)

    def resume(self, loop: Loop) -> None:
        self.seen.append(("resume", loop.step))

    def start(self, loop: Loop) -> None:
        self.seen.append("start")

    def before_step(self, loop: Loop, setup: Any) -> None:
        self.seen.append(("before", loop.step))

    def needs_checkpoint(self, loop: Loop) -> bool:
        return loop.step == 2

    def after_step(self, loop: Loop, result: Any) -> None:
        self.seen.append(("after", loop.step))
        if loop.step in self.rewinds:
            self.rewinds.remove(loop.step)
            loop.rewind(None)

    def at_checkpoint(self, loop: Loop) -> None:
        self.seen.append("checkpoint")

    def evaluate(self, loop: Loop) -> None:
        self.seen.append("evaluate")

    def finish(self, loop: Loop) -> None:
        self.seen.append("finish")


def loop_of(given: TrainingJob, observers: list[Observer], *, asks: bool = False) -> Loop:
    given.out.mkdir(parents=True, exist_ok=True)
    return Loop(given, Mesh.single(), observers, asks=lambda: asks, alive=lambda: None)


def test_observers_change_nothing_of_what_is_trained(tokens: Path, tmp_path: Path) -> None:
    observed = job(tokens, tmp_path / "observed", plan({}), steps=4, **OFTEN)
    with_all = loop_of(observed, observers_of(observed, Mesh.single(), Post()))
    alone = loop_of(job(tokens, tmp_path / "alone", plan({}), steps=4), [])
    for loop in (with_all, alone):
        loop.run()
    one, two = ({f.name: f.values for f in fragments(loop.trainer)} for loop in (with_all, alone))
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
    assert with_all.final_losses == alone.final_losses


def test_observers_are_called_at_their_moments(tokens: Path, tmp_path: Path) -> None:
    moments = Moments()
    loop_of(job(tokens, tmp_path, plan({}), steps=2), [moments]).run()
    first = ["start", ("before", 1), ("after", 1), "evaluate"]
    assert moments.seen == [("resume", 0), *first, ("before", 2), ("after", 2), "checkpoint", "evaluate", "finish"]


def test_those_after_an_observer_that_rewinds_are_not_called_and_the_steps_are_done_again(
    tokens: Path, tmp_path: Path
) -> None:
    first, later = Moments(rewinds=(2,)), Moments()
    loop_of(job(tokens, tmp_path, plan({}), steps=2), [first, later]).run()
    assert [each for each in first.seen if each[0] == "after"] == [("after", n) for n in (1, 2, 1, 2)]
    assert [each for each in later.seen if each[0] == "after"] == [("after", n) for n in (1, 1, 2)]
    assert first.seen.count(("resume", 0)) == 2 and first.seen.count("start") == 1


def test_a_job_that_is_asked_to_end_saves_and_evaluates_nothing(tokens: Path, tmp_path: Path) -> None:
    moments = Moments()
    with pytest.raises(Preempted, match="saved after step 1"):
        loop_of(job(tokens, tmp_path, plan({}), steps=3), [moments], asks=True).run()
    assert moments.seen[-3:] == [("after", 1), "checkpoint", "finish"]


def test_a_setting_that_only_a_missing_observer_reads_is_refused(tokens: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "trivium.training.observers.spikes", None)  # as if its file were not there
    given = job(tokens, tmp_path, plan({}), steps=1)
    assert "Spikes" not in [type(each).__name__ for each in observers_of(given, Mesh.single(), Post())]
    given = job(tokens, tmp_path, plan({}), steps=1, spikes={"policy": "skip"})
    with pytest.raises(ConfigError, match=r"training\.spikes .*observers\.spikes, which alone reads it"):
        observers_of(given, Mesh.single(), Post())
