"""Saves that fail or run in the background leave no temporary files."""

import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from ranks import on_ranks
from trivium import provenance
from trivium.checkpoint import durable, pieces
from trivium.checkpoint.format import published, step_name, step_of
from trivium.checkpoint.load import Checkpoint, newest_good
from trivium.checkpoint.save import Fragment, Saving, copies, prune, recover, save
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError
from trivium.plan.layout import Layout
from trivium.plan.parameters import Box
from trivium.units import format_bytes

MESH = Mesh.single()
SIZE = 200_000


def fragment(value: float = 1.0, size: int = SIZE) -> list[Fragment]:
    return [Fragment("weights/a", (size,), Box((0,), (size,)), torch.full((size,), value))]


def whole(root: Path, step: int) -> torch.Tensor:
    checkpoint = Checkpoint.open(root / step_name(step))
    checkpoint.verify()
    return checkpoint.read("weights/a", Box((0,), (SIZE,)), torch.float32)


def left_behind(root: Path) -> list[str]:
    return [p.name for p in root.iterdir() if step_of(p.name) is None]


def limit_files(limit: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def save_under_a_limit(root: Path, limit: int) -> None:
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    limit_files(limit)
    try:
        save(root, 2, fragment(2.0), MESH, {})
    except CheckpointError as error:
        Path(root / "told").write_text(str(error)[:1000])


@pytest.mark.parametrize("limit", [0, 7, 100, 100_000, SIZE * 4])
def test_file_size_limit_is_reported_with_needed_and_free_bytes(tmp_path: Path, limit: int) -> None:
    save(tmp_path, 1, fragment(), MESH, {})
    room = max(limit, 1000) if limit else 1000  # the message itself is a file of this process
    process = get_context("fork").Process(target=save_under_a_limit, args=(tmp_path, room))
    process.start()
    process.join()
    told = (tmp_path / "told").read_text()
    assert "was not saved" in told and format_bytes(4 * SIZE) in told and " free" in told and "ulimit" in told
    assert left_behind(tmp_path) == ["told"]
    assert whole(tmp_path, 1).eq(1.0).all() and not (tmp_path / step_name(2)).exists()


@pytest.mark.parametrize("nth", range(1, 12, 2))
def test_full_disk_at_any_write_keeps_previous_checkpoint(tmp_path: Path, monkeypatch, nth: int) -> None:
    save(tmp_path, 1, fragment(), MESH, {})
    write, calls = os.write, []

    def full(descriptor: int, data: memoryview) -> int:
        if threading.current_thread().name != "checkpoint":
            return write(descriptor, data)
        calls.append(len(data))
        if len(calls) >= nth:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: max(1, len(data) // 2)])  # short writes are legal

    monkeypatch.setattr(durable.os, "write", full)
    with pytest.raises(CheckpointError, match=f"No space left.*{format_bytes(4 * SIZE)} are needed and .* are free"):
        save(tmp_path, 2, fragment(2.0), MESH, {})
    monkeypatch.undo()
    assert left_behind(tmp_path) == [] and whole(tmp_path, 1).eq(1.0).all()
    save(tmp_path, 2, fragment(2.0), MESH, {})
    assert whole(tmp_path, 2).eq(2.0).all()


@pytest.fixture
def small_disk(tmp_path: Path):
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_save_that_does_not_fit_is_rejected_before_writing(small_disk: Path) -> None:
    save(small_disk, 1, fragment(), MESH, {})
    with pytest.raises(CheckpointError) as refused:
        save(small_disk, 2, fragment(2.0, 800_000), MESH, {})
    text, free = str(refused.value), shutil.disk_usage(small_disk).free
    needed = format_bytes(3_200_000 + durable.MARGIN_BYTES)
    assert f"{small_disk}: {needed} are needed and {format_bytes(free)} are free" in text
    assert left_behind(small_disk) == [] and whole(small_disk, 1).eq(1.0).all()


def test_disk_filled_by_others_keeps_previous_checkpoint(small_disk: Path, monkeypatch) -> None:
    save(small_disk, 1, fragment(), MESH, {})
    check = durable.check_room

    def then_fill(directory: Path, needed: int) -> None:
        check(directory, needed)
        (small_disk / "others").write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 300_000))

    monkeypatch.setattr("trivium.checkpoint.save.check_room", then_fill)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(small_disk, 2, fragment(2.0), MESH, {})
    assert left_behind(small_disk) == ["others"] and whole(small_disk, 1).eq(1.0).all()


def test_read_only_disk_is_reported_and_can_be_read(small_disk: Path) -> None:
    save(small_disk, 1, fragment(), MESH, {})
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(CheckpointError, match=f"{small_disk}.*Read-only file system.*mount it for writing"):
        save(small_disk, 2, fragment(2.0), MESH, {})
    assert whole(small_disk, 1).eq(1.0).all()


def test_file_that_reads_back_differently_is_not_published(tmp_path: Path, monkeypatch) -> None:
    right = pieces.write_blocks

    def bad_disk(path: Path, *given):
        written = right(path, *given)
        with open(path, "r+b") as file:
            file.seek(5000)
            file.write(b"\x01")
        return written

    save(tmp_path, 1, fragment(), MESH, {})
    monkeypatch.setattr(pieces, "write_blocks", bad_disk)
    with pytest.raises(CheckpointError, match="does not read back"):
        save(tmp_path, 2, fragment(2.0), MESH, {})
    assert [p.name for p in published(tmp_path)] == [step_name(1)] and left_behind(tmp_path) == []


def test_copy_is_saved_while_values_change(tmp_path: Path, monkeypatch) -> None:
    go_on = threading.Event()
    right = pieces.write_blocks

    def slowly(*given):
        assert go_on.wait(30)
        return right(*given)

    monkeypatch.setattr(pieces, "write_blocks", slowly)
    values = fragment()
    saving = Saving(tmp_path, 1, copies(values), MESH, {})
    assert not saving.advance() and published(tmp_path) == []
    values[0].values.fill_(9.0)
    go_on.set()
    while not saving.advance():
        time.sleep(0.001)
    assert whole(tmp_path, 1).eq(1.0).all()


def test_awaited_save_sends_heartbeat_for_each_block(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(durable, "_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(provenance, "_BLOCK_BYTES", 1 << 10)
    alive, waiting, write = list[int](), threading.Event(), pieces.write_blocks
    monkeypatch.setattr(pieces, "write_blocks", lambda *given: waiting.wait(30) and write(*given))
    saving = Saving(tmp_path, 1, fragment(), MESH, {}, lambda: alive.append(1))
    threading.Timer(0.3, waiting.set).start()  # not before it is waited for
    saving.advance(wait=True)
    assert len(alive) >= 2 * (saving.bytes >> 10), "written and read back"


def test_background_save_sends_no_heartbeat(tmp_path: Path) -> None:
    """It would hide that training itself hangs."""
    alive: list[int] = []
    saving = Saving(tmp_path, 1, fragment(), MESH, {}, lambda: alive.append(1))
    while not saving.advance():
        time.sleep(0.001)
    assert not alive


def one_rank_fails(place: Place, root: Path, slow: int | None) -> None:
    mesh = Mesh.connect(Layout(data=3), place.rank, place.world_size)
    part = [Fragment("weights/a", (SIZE * 3,), Box((place.rank * SIZE,), (SIZE,)), torch.ones(SIZE))]
    save(root, 1, part, mesh, {})
    if place.rank == 1:
        limit_files(50_000)
    right, late = pieces.write_blocks, place.rank == slow
    if late:  # it still writes when it hears of the failure, and is not the cause

        def until_cancelled(path: Path, blocks: Any, cancelled: Any, alive: Any) -> Any:
            deadline = time.monotonic() + 30
            while not cancelled() and time.monotonic() < deadline:
                time.sleep(0.001)
            return right(path, blocks, cancelled, alive)

        pieces.write_blocks = until_cancelled
    begun = Saving(root, 2, part, mesh, {})
    looked = 0
    try:
        while not begun.advance():
            looked += 1
            time.sleep(0.01)
    except CheckpointError as error:
        assert "rank 1: " in str(error) and "ulimit" in str(error), f"{place.rank}: {error}"
        assert not list(root.glob(".*"))
    else:
        raise AssertionError("a save without one rank's part was published")
    pieces.write_blocks = right
    if place.rank == 1:
        limit_files(resource.RLIM_INFINITY)
    save(root, 2, part, mesh, {})


@pytest.mark.parametrize("slow", [None, 0, 2])
def test_save_is_published_only_if_all_ranks_succeed(tmp_path: Path, slow: int | None) -> None:
    on_ranks(3, one_rank_fails, tmp_path, slow)
    assert [step_of(p.name) for p in published(tmp_path)] == [1, 2]
    for path in published(tmp_path):
        Checkpoint.open(path).verify()


def test_crash_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step, fragment(float(step)), MESH, {})
    (tmp_path / step_name(2)).rename(tmp_path / f".{step_name(2)}.replaced")
    shutil.copytree(tmp_path / step_name(1), tmp_path / f".{step_name(1)}.replaced")
    (tmp_path / f".{step_name(3)}.partial").mkdir()
    (tmp_path / f".{step_name(0)}.removed").mkdir()
    recover(tmp_path)
    assert left_behind(tmp_path) == []
    assert [whole(tmp_path, s)[0].item() for s in (1, 2)] == [1.0, 2.0]


def test_interrupted_delete_leaves_no_partial_checkpoint(tmp_path: Path, monkeypatch) -> None:
    for step in (1, 2):
        save(tmp_path, step, fragment(), MESH, {})
    monkeypatch.setattr(durable.shutil, "rmtree", lambda path, ignore_errors: None)
    prune(tmp_path, [tmp_path / step_name(1)], tmp_path / step_name(2))
    monkeypatch.undo()
    assert [step_of(p.name) for p in published(tmp_path)] == [2]
    recover(tmp_path)
    assert left_behind(tmp_path) == []


def test_nothing_is_deleted_before_newer_is_published(tmp_path: Path) -> None:
    save(tmp_path, 1, fragment(), MESH, {})
    with pytest.raises(CheckpointError, match="not published"):
        prune(tmp_path, [tmp_path / step_name(1)], tmp_path / step_name(2))
    assert newest_good(tmp_path, MESH, print).step == 1
