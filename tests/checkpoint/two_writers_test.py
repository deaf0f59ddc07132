"""If two processes publish one name, one succeeds, the other gets an error, and the result is complete."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trivium.checkpoint.format import step_name
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.reshard import reshard
from trivium.checkpoint.save import Fragment, save
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError, MachineError
from trivium.plan.parameters import Box
from trivium.provenance import LOCK, publishing_new

ROUNDS = 40


def at_once(*writers: Callable[[], object]) -> list[Exception | None]:
    """Run the writers at the same time; return what each raised."""
    begin, found = threading.Barrier(len(writers)), list[Exception | None]([None] * len(writers))

    def run(number: int) -> None:
        begin.wait()
        try:
            writers[number]()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(writers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def refused_one(raised: list[Exception | None], name: Path) -> None:
    (loser,) = [error for error in raised if error is not None]
    assert isinstance(loser, ConfigError | MachineError), repr(loser)
    assert str(name) in str(loser)


def test_one_of_two_reshards_to_one_name_succeeds(tmp_path: Path) -> None:
    sources = []
    for value in (1.0, 2.0):
        held = [Fragment("weights/a", (512,), Box((0,), (512,)), torch.full((512,), value))]
        sources.append(Checkpoint.open(save(tmp_path / str(value), 7, held, Mesh.single(), {})))
    for number in range(ROUNDS):
        to = tmp_path / f"to-{number}"
        raised = at_once(*(lambda s=s, to=to: reshard(s, to, files=2) for s in sources))
        refused_one(raised, to / step_name(7))
        found = Checkpoint.open(to / step_name(7))
        found.verify()
        winner = 1.0 + raised.index(None)
        assert found.read("weights/a", Box((0,), (512,)), torch.float32).unique().tolist() == [winner]
        assert [path.name for path in to.iterdir()] == [step_name(7)]
        assert not (to / step_name(7) / LOCK).exists()


def test_folder_published_during_creation_is_reported_as_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, make = tmp_path / "out", os.mkdir

    def made_by_another(path: Path, *rest: int) -> None:
        if Path(path).name.endswith(".partial"):
            raise FileExistsError(path)  # and it is gone when mkdir() looks whether it is a folder
        make(path, *rest)

    monkeypatch.setattr(os, "mkdir", made_by_another)
    said = "out is being written by another process"
    with pytest.raises(MachineError, match=said), publishing_new(folder, "name another"):
        raise AssertionError("nobody may write it")
