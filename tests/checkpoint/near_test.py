"""Copies of a state on the hosts of its ranks: training resumes from the newest that is complete and intact."""

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from chaos.scene import event_steps, job, plan, write_tokens
from trivium.checkpoint.near import Neighbour, newest_complete, send, write
from trivium.checkpoint.pieces import Part
from trivium.comms.launch import Ranks
from trivium.plan.parameters import Box
from trivium.training.metrics import EVENTS, METRICS, read
from trivium.training.supervision.job import start
from trivium.training.supervision.rendezvous import Door

FOUR, EIGHT = "step-00000004-of-00003", "step-00000008-of-00003"


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ([{FOUR: [0, 2], EIGHT: [0, 2]}, {FOUR: [0, 1], EIGHT: [0, 1]}, {}], (EIGHT, [0, 1, 0])),
        ([{FOUR: [0, 2], EIGHT: [0]}, {FOUR: [0, 1], EIGHT: [1]}, {}], (FOUR, [0, 1, 0])),  # a part of step 8 is gone
        ([{FOUR: [0], EIGHT: [0]}, {}, {}], None),
    ],
)
def test_newest_step_of_which_every_part_is_left_is_used(held, found) -> None:
    assert newest_complete(held, after=3) == found
    assert newest_complete(held, after=8) is None


def part(value: float) -> Part:
    return Part("weights/a", (4,), Box((0,), (4,)), torch.float32, lambda: torch.full((4,), value))


def test_neighbour_keeps_the_same_bytes_for_those_who_know_the_secret_only(tmp_path: Path) -> None:
    life = "0" * 32
    files = write(tmp_path / "here" / life / FOUR, 2, [part(1.5)], {"step": 4})
    door = Door(tmp_path / "there")
    to = Neighbour("127.0.0.1", door.port, "secret")
    with pytest.raises(OSError, match="secret"):
        send(files, to)
    door.secret = "secret"
    send(files, to)
    kept = [tmp_path / "there" / life / FOUR / path.name for path in files]
    assert [path.read_bytes() for path in kept] == [path.read_bytes() for path in files]
    assert len(list((tmp_path / "there").rglob("*.*"))) == len(files)
    door.close()


@pytest.mark.parametrize("name", ["../../etc/passwd", f"{'0' * 32}/{FOUR}/../x", f"{'0' * 32}/{FOUR}/note.txt"])
def test_no_other_file_can_be_written(tmp_path: Path, name: str) -> None:
    door = Door(tmp_path / "there")
    door.secret = "secret"
    with socket.create_connection(("127.0.0.1", door.port)) as caller:
        caller.recv(64)
        caller.sendall(f'{{"secret": "secret", "name": "{name}", "bytes": 1}}\nx'.encode())
        assert "no file of a copy" in caller.recv(256).decode()
    door.close()
    assert not (tmp_path / "there").exists()


def killing_once(out: Path, step: int, damaged: Path | None) -> Callable[[Ranks, int], None]:
    """Kill a rank when the training has done a step, and cut off the end of its file of each copy in `damaged`."""
    killed: list[int] = []

    def watch(ranks: Ranks, now: int) -> None:
        if killed or now < step or not event_steps(out, "copied near"):
            return
        killed.append(now)
        os.kill(ranks.pids[1], signal.SIGKILL)
        with suppress(FileNotFoundError):  # older copies are being deleted
            for found in sorted(damaged.rglob("pieces-00001.safetensors")) if damaged else ():
                os.truncate(found, 1)

    return watch


@pytest.mark.parametrize("harm", ["none", "damage"])
def test_training_resumes_from_the_copy_and_computes_what_an_unbroken_run_does(tmp_path: Path, harm: str) -> None:
    tokens, of = write_tokens(tmp_path), plan({"data": 2, "zero": 1})
    near = {"every": 2, "folder": str(tmp_path / "near")}
    given = {"steps": 12, "checkpoint_every": 100, "restarts": 1, "near": near}
    start(job(tokens, tmp_path / "unbroken", of, **given))
    out = tmp_path / "broken"
    start(job(tokens, out, of, **given), watch=killing_once(out, 7, tmp_path / "near" if harm == "damage" else None))
    events = [e["event"] for e in read(out / EVENTS)]
    resumed = event_steps(out, "resumed")
    assert "near copy" in events
    assert (resumed and resumed[0] >= 4) if harm == "none" else not resumed
    one, two = ({m["step"]: m["loss"] for m in read(o / METRICS) if "loss" in m} for o in (tmp_path / "unbroken", out))
    assert one == two
    assert not [*(tmp_path / "near").rglob("step-*")], "copies of a training that is done would stay in memory"
