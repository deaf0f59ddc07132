"""The loop does the steps, and observers do not change them; deletion_test.py runs this without each of them."""

import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.scene import job, plan, write_tokens
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError, Preempted
from trivium.provenance import unheard
from trivium.training.loop import Loop, Observer, TrainingJob
from trivium.training.rank import observers_of
from trivium.training.state import fragments

OFTEN = {"validate_every": 1, "checkpoint_every": 2, "supervision": {"replicas_every": 1, "slow_every": 1}}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("loop"))


class Calls(Observer):
    """Records every call, and rewinds to the beginning after the steps `rewinds`."""

    def __init__(self, rewinds: tuple[int, ...] = ()) -> None:
        self.seen, self.rewinds = list[Any](), list(rewinds)

    def resume(self, loop: Loop) -> None:
        self.seen.append(("resume", loop.step))

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


def loop_of(given: TrainingJob, observers: list[Observer], *, asked: bool = False) -> Loop:
    given.out.mkdir(parents=True, exist_ok=True)
    return Loop(given, Mesh.single(), observers, asked=lambda: asked)


def test_observers_do_not_change_what_is_trained(tokens: Path, tmp_path: Path) -> None:
    observed = job(tokens, tmp_path / "observed", plan({}), steps=4, **OFTEN)
    with_all = loop_of(observed, observers_of(observed, Mesh.single(), unheard))
    alone = loop_of(job(tokens, tmp_path / "alone", plan({}), steps=4), [])
    for loop in (with_all, alone):
        loop.run()
    one, two = ({f.name: f.values for f in fragments(loop.trainer)} for loop in (with_all, alone))
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
    assert with_all.final_loss == alone.final_loss


def test_observers_are_called_in_order(tokens: Path, tmp_path: Path) -> None:
    calls = Calls()
    loop_of(job(tokens, tmp_path, plan({}), steps=2), [calls]).run()
    second = [("before", 2), ("after", 2), "checkpoint", "evaluate", "finish"]
    assert calls.seen == [("resume", 0), ("before", 1), ("after", 1), "evaluate", *second]


def test_observers_after_one_that_rewinds_are_not_called_and_the_steps_are_repeated(
    tokens: Path, tmp_path: Path
) -> None:
    first, later = Calls(rewinds=(2,)), Calls()
    loop_of(job(tokens, tmp_path, plan({}), steps=2), [first, later]).run()
    assert [each for each in first.seen if each[0] == "after"] == [("after", n) for n in (1, 2, 1, 2)]
    assert [each for each in later.seen if each[0] == "after"] == [("after", n) for n in (1, 1, 2)]
    assert first.seen.count(("resume", 0)) == 2


def test_preempted_job_saves_and_evaluates_nothing(tokens: Path, tmp_path: Path) -> None:
    calls = Calls()
    with pytest.raises(Preempted, match="saved after step 1"):
        loop_of(job(tokens, tmp_path, plan({}), steps=3), [calls], asked=True).run()
    assert calls.seen[-3:] == [("after", 1), "checkpoint", "finish"]


def test_setting_of_a_missing_observer_is_rejected(tokens: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "trivium.training.observers.spikes", None)  # as if its file were not there
    given = job(tokens, tmp_path, plan({}), steps=1)
    assert "Spikes" not in [type(each).__name__ for each in observers_of(given, Mesh.single(), unheard)]
    given = job(tokens, tmp_path, plan({}), steps=1, spikes={"policy": "skip"})
    with pytest.raises(ConfigError, match=r"training\.spikes .*observers\.spikes, which alone reads it"):
        observers_of(given, Mesh.single(), unheard)
