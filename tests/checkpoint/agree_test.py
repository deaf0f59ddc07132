"""Ranks that wait for a slow disk keep communicating, so that no collective times out."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ranks import on_ranks
from trivium import provenance
from trivium.checkpoint import agree, load, pieces, save, verify
from trivium.checkpoint.agree import found_by_first, problem_of_any
from trivium.checkpoint.load import Checkpoint, newest_good
from trivium.checkpoint.save import Fragment, Saving
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, DataError
from trivium.plan.layout import Layout
from trivium.plan.parameters import Box

MESH = Mesh.single()
PATIENCE_SECONDS = 5.0


def fragments(value: float = 1.0) -> list[Fragment]:
    return [Fragment("weights/a", (4,), Box((0,), (4,)), torch.full((4,), value))]


@pytest.fixture
def until_ranks_communicate(monkeypatch) -> Callable[[], None]:
    """Wait, like a slow disk, until the ranks have run several more collectives."""
    right, meetings = agree.sum_over_ranks_, []

    def counted(tensor, mesh):
        meetings.append(1)
        return right(tensor, mesh)

    def wait() -> None:
        enough, deadline = len(meetings) + 5, time.monotonic() + PATIENCE_SECONDS
        while len(meetings) < enough:
            assert time.monotonic() < deadline, "no collective ran while this rank worked"
            time.sleep(0.001)

    monkeypatch.setattr(agree, "sum_over_ranks_", counted)
    monkeypatch.setattr(agree, "_SLICE_SECONDS", 0.005, raising=False)
    return wait


def test_ranks_communicate_during_slow_save(tmp_path: Path, monkeypatch, until_ranks_communicate) -> None:
    right = pieces.write_pieces

    def slow(*given, **named):
        until_ranks_communicate()
        return right(*given, **named)

    monkeypatch.setattr(pieces, "write_pieces", slow)
    assert Saving(tmp_path, 1, fragments(), MESH, {}).advance(wait=True)


def test_ranks_communicate_during_slow_verification(tmp_path: Path, monkeypatch, until_ranks_communicate) -> None:
    path, right = save.save(tmp_path, 1, fragments(), MESH, {}), verify.file_sha256

    def slow(*given) -> str:
        until_ranks_communicate()
        return right(*given)

    monkeypatch.setattr(verify, "file_sha256", slow)
    assert Checkpoint.open_together(path, MESH).step == 1


def test_verification_sends_heartbeat_for_each_block(tmp_path: Path, monkeypatch) -> None:
    values = torch.ones(1 << 12)
    given = [Fragment("weights/a", (1 << 12,), Box((0,), (1 << 12,)), values)]
    save.save(tmp_path, 1, given, MESH, {})
    monkeypatch.setattr(provenance, "_BLOCK_BYTES", 1 << 10)
    alive: list[int] = []
    assert newest_good(tmp_path, MESH, print, lambda: alive.append(1)) is not None
    assert len(alive) >= values.nbytes >> 10


def share_work(place: Place) -> None:
    mesh, alive = Mesh.connect(Layout(data=2), place.rank, place.world_size), []
    agree._SLICE_SECONDS = 0.01

    def fail_on_the_last() -> None:
        if place.rank == 1:
            time.sleep(0.1)
            raise DataError("train-a.bin is damaged")

    assert problem_of_any(lambda: None, mesh) == ""
    told = problem_of_any(fail_on_the_last, mesh, lambda: alive.append(1))
    assert told == "rank 1: train-a.bin is damaged"
    assert bool(alive) == (place.rank == 0), "only who waits for others alone says so here"

    def fail() -> None:
        raise DataError(f"a file of rank {place.rank}")

    assert problem_of_any(fail, mesh) == "rank 0: a file of rank 0", "the first of those that failed"


def test_all_ranks_get_error_of_lowest_failed_rank() -> None:
    on_ranks(2, share_work)


@pytest.mark.parametrize("call", ["stat", "file_sha256"])
def test_unreadable_newest_checkpoint_is_skipped(tmp_path: Path, monkeypatch, call: str) -> None:
    for step in (1, 2):
        save.save(tmp_path, step, fragments(), MESH, {})
    right, warnings = (Path.stat if call == "stat" else verify.file_sha256), []

    def unreadable(path: Path, *given, **named):
        if "step-00000002" in str(path) and path.suffix == ".safetensors":
            raise OSError(5, os.strerror(5), str(path))
        return right(path, *given, **named)

    monkeypatch.setattr(Path if call == "stat" else verify, call, unreadable)
    found = newest_good(tmp_path, MESH, warnings.append)
    assert found is not None and found.step == 1
    (told,) = warnings
    assert "PASSING OVER" in told and "step-00000002" in told and "cannot be read: Input/output error" in told
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoint.open(tmp_path / "step-00000002").verify()


def use_listing_of_first_rank(place: Place, root: str) -> None:
    mesh = Mesh.connect(Layout(tensor=2, pipeline=2, data=2), place.rank, place.world_size)
    for length in (0, 5000):
        found = found_by_first(lambda: {"é": [place.rank, 2.5, None, "x" * length]}, mesh, DataError)  # noqa: B023
        assert found == {"é": [0, 2.5, None, "x" * length]}

    def fail() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(DataError, match="rank 0: .*Input/output error"):
        found_by_first(fail, mesh, DataError)
    # A host whose listing is a minute old, as a network file system may have it, knows only the older one.
    if place.rank >= 4:
        load.published = lambda root: [Path(root) / "step-00000001"]
    newest = newest_good(Path(root), mesh, print)
    assert newest is not None and newest.step == 2
    assert newest.read("weights/a", Box((0,), (4,)), torch.float32).tolist() == [2.0] * 4
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        Checkpoint.open_together(Path(root) / "step-00000009", mesh)


def test_all_ranks_use_first_ranks_listing(tmp_path: Path) -> None:
    for step in (1, 2):
        save.save(tmp_path, step, fragments(step), MESH, {})
    on_ranks(8, use_listing_of_first_rank, str(tmp_path))
