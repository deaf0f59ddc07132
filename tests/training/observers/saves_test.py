"""Checkpoints written in the background have the state at the time, and failures in a row are counted."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trivium.checkpoint import pieces
from trivium.checkpoint.format import published, step_of
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.save import Fragment
from trivium.comms.mesh import Mesh
from trivium.errors import MachineError
from trivium.plan.parameters import Box
from trivium.training.config import TrainingConfig
from trivium.training.observers.saves import Saves

WHOLE = Box((0,), (4,))


def saves(root: Path, **config: Any) -> tuple[Saves, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    return Saves(root, TrainingConfig(steps=9, **config), Mesh.single(), events.append), events


def fragments(values: torch.Tensor) -> list[Fragment]:
    return [Fragment("weights/a", (4,), WHOLE, values)]


@pytest.fixture
def before_writing(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return a list of functions, one of which is called before each file is written, in turn."""
    right, each = pieces.write_pieces, list[Callable[[], object]]()

    def write(*given: Any, **named: Any) -> Any:
        if each:
            each.pop(0)()
        return right(*given, **named)

    monkeypatch.setattr(pieces, "write_pieces", write)
    return each


def test_background_save_has_the_state_before_training_continued(
    tmp_path: Path, before_writing: list[Callable[[], object]]
) -> None:
    gone_on, values = threading.Event(), torch.arange(4.0)
    before_writing.append(lambda: gone_on.wait(10))
    here, events = saves(tmp_path, save="background")
    here.begin(1, fragments(values), {})
    values.zero_()
    gone_on.set()
    here.end()
    found = Checkpoint.open(tmp_path / "step-00000001").read("weights/a", WHOLE, torch.float32)
    assert found.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert [e["event"] for e in events] == ["saved"]


def test_successful_save_resets_the_count_of_failures(
    tmp_path: Path, before_writing: list[Callable[[], object]]
) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    here, events = saves(tmp_path, save_failures=2)
    before_writing += [fail, lambda: None, fail, fail]
    for step in (1, 2, 3):
        here.begin(step, fragments(torch.ones(4)), {})
        here.settle()
    assert [e["event"] for e in events] == ["save failed", "saved", "save failed"]
    with pytest.raises(MachineError, match="saves in a row failed"):
        here.begin(4, fragments(torch.ones(4)), {})
        here.settle()


def test_skipped_checkpoints_are_neither_counted_nor_deleted(tmp_path: Path) -> None:
    """A damaged one that counted took the place of the one that training went on from."""

    def save(here: Saves, *steps: int) -> list[int | None]:
        for step in steps:
            here.begin(step, fragments(torch.ones(4)), {})
            here.settle()
        return [step_of(path.name) for path in published(tmp_path)]

    assert save(saves(tmp_path, keep_last=2)[0], 3, 5) == [3, 5]
    later, again = saves(tmp_path, keep_last=2)[0], saves(tmp_path, keep_last=2)[0]
    later.go_on_from(3)
    assert save(later, 6) == [3, 5, 6]
    assert save(later, 9) == [5, 6, 9]
    again.go_on_from(9)
    again.go_on_from(3)  # as after a rewind
    assert save(again, 5, 6, 7) == [6, 7, 9]


def test_nothing_is_deleted_before_a_step_shows_that_the_saved_state_is_good(tmp_path: Path) -> None:
    here, _ = saves(tmp_path, keep_last=1, save="waiting")
    here.begin(1, fragments(torch.ones(4)), {})
    here.look()  # a step was accepted
    here.begin(2, fragments(torch.ones(4)), {})
    here.settle(may_delete=False)
    here.step_refused = True  # and skipped
    here.look()
    here.settle()
    assert [step_of(path.name) for path in published(tmp_path)] == [1, 2]
    here.step_refused = False
    here.look()
    here.settle()
    assert [step_of(path.name) for path in published(tmp_path)] == [2]


def test_state_that_is_not_finite_never_replaces_a_good_one(tmp_path: Path) -> None:
    here, events = saves(tmp_path, keep_last=1)
    here.begin(1, fragments(torch.ones(4)), {})
    here.begin(2, fragments(torch.tensor([1.0, float("nan"), 1.0, 1.0])), {})
    with pytest.raises(MachineError, match="last checkpoint .* was not saved"):
        here.end()
    assert [step_of(path.name) for path in published(tmp_path)] == [1]
    assert "weights/a holds a NaN or an infinity" in events[-1]["cause"]
