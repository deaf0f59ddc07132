"""The launcher's restarts: they are counted from the newest checkpoint, and progress renews them."""

from pathlib import Path

import pytest

from chaos.scene import job, plan
from trivium.comms.launch import RankFailed
from trivium.errors import TriviumError
from trivium.training.loop import CHECKPOINTS
from trivium.training.supervision import supervise
from trivium.training.supervision.preemption import Requests
from trivium.training.supervision.supervise import Supervisor


def attempts(folder: Path, monkeypatch, ends: list[tuple[int, int]], restarts: int = 2) -> tuple[int, str]:
    """How many attempts are made of those that fail in (step, after a checkpoint of step), and what is said at last."""
    given = job(folder, folder / "run", plan({}), restarts=restarts, supervision={"restart_seconds": 0})
    (given.out / CHECKPOINTS).mkdir(parents=True)
    made = list[int]()

    def attempt(self, job, pulse) -> None:
        step, saved = ends[len(made)]
        made.append(step)
        (given.out / CHECKPOINTS / f"step-{saved:08d}").mkdir(exist_ok=True)
        pulse.beat(0, step, "step")
        raise RankFailed(0, {0: 1}, "it failed")

    monkeypatch.setattr(Supervisor, "_attempt", attempt)
    monkeypatch.setattr(supervise, "recover", lambda root: None)
    with pytest.raises(TriviumError) as ended:
        Supervisor(given, Requests(), lambda *_: None, lambda *_: None).see_through(())
    return len(made), str(ended.value)


def test_failures_at_the_same_checkpoint_use_up_the_restarts(tmp_path: Path, monkeypatch) -> None:
    count, _ = attempts(tmp_path, monkeypatch, [(11, 10), (12, 10), (13, 10), (14, 10)])
    assert count == 3


def test_each_newer_checkpoint_renews_the_restarts(tmp_path: Path, monkeypatch) -> None:
    ends = [(n * 10 + 1, n * 10) for n in range(1, 8)]
    count, _ = attempts(tmp_path, monkeypatch, [*ends, (72, 70), (73, 70), (74, 70)])
    assert count == len(ends) + 2


def test_the_same_step_that_fails_twice_ends_the_job_whatever_is_left(tmp_path: Path, monkeypatch) -> None:
    count, said = attempts(tmp_path, monkeypatch, [(11, 10), (11, 10), (12, 10)], restarts=9)
    assert count == 2 and "it failed there twice" in said
