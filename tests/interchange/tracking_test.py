"""Metrics reach TensorBoard and wandb completely and once, also if a resumed run repeats steps."""

import json
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from trivium.errors import ConfigError, MachineError
from trivium.interchange import tracking
from trivium.interchange.tracking import NewLines, point_of, tracker
from trivium.training.metrics import append, forget_after, record_of

WRITTEN_SECONDS = 20.0


def record(step: int, loss: float) -> dict[str, object]:
    return {"step": step, "time": 1e9 + step, "loss": loss, "batch_hash": "ab", "tokens": 64 * step}


def steps(lines: NewLines) -> list[int]:
    return [r["step"] for r in lines]


def shown(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(e.step, e.value) for e in events.Scalars(name)]


def test_numbers_are_named_by_path() -> None:
    point = point_of({"step": 7, "time": 2.0, "ok": True, "name": "x", "tasks": {"hans": {"0": {"n": 3}}}})
    assert point == (7, 2.0, {"tasks/hans/0/n": 3.0})
    assert point_of({"step": 1, "loss": 2}).time is None
    assert point_of({"step": 1, "n": 10**400}).values == {}, "no tool has so large a number"


def test_complete_lines_are_returned_once(tmp_path: Path) -> None:
    path, other = tmp_path / "metrics.jsonl", tmp_path / "tasks.jsonl"
    lines = NewLines([path, other], record_of)
    assert steps(lines) == []
    append(path, record(1, 3.0))
    with path.open("a") as file:
        file.write(json.dumps(record(2, 2.5))[:-1])
        file.flush()
        assert steps(lines) == [1] and steps(lines) == []
        file.write("}\n")
    append(other, {"step": 2, "tasks": {}})
    assert steps(lines) == [2, 2] and steps(lines) == []


def test_only_repeated_steps_are_returned_after_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = NewLines([path], record_of)
    for n in range(1, 6):
        append(path, record(n, 1 / n))
    assert steps(lines) == [1, 2, 3, 4, 5]
    forget_after(path, 3)
    append(path, record(4, 0.9))
    assert steps(lines) == [4]
    for n in range(5, 12):
        append(path, record(n, 1 / n + 0.1))
    assert steps(lines) == list(range(5, 12)) and steps(lines) == []
    forget_after(path, 9)
    for n in range(10, 15):  # the new file is longer than the old one
        append(path, record(n, 1 / n + 0.2))
    assert steps(lines) == list(range(10, 15))


def test_lines_are_not_read_twice(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = NewLines([path], record_of)
    append(path, record(1, 3.0))
    assert steps(lines) == [1]
    with path.open("r+b") as file:  # modified in place, which does not happen in practice
        file.write(b'{"step": 9')
    append(path, record(2, 2.0))
    assert steps(lines) == [2]


def test_damaged_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnot json\n[1]\n{"loss": 1}\n{"step": 2}\n')
    assert steps(NewLines([path], record_of)) == [1, 2]


def test_tensorboard_shows_repeated_steps_once(tmp_path: Path) -> None:
    for _ in range(2):  # repeated export changes nothing
        keeper = tracker("tensorboard", tmp_path, {})
        for n, loss in ((1, 4.0), (2, 3.0), (3, 9.0), (2, 2.5), (3, 2.25)):
            keeper.add(point_of(record(n, loss)))
        assert keeper.close() == f"tensorboard --logdir {tmp_path / 'tensorboard'}"
    assert shown(tmp_path / "tensorboard", "loss") == [(1, 4.0), (2, 2.5), (3, 2.25)]
    assert shown(tmp_path / "tensorboard", "tokens") == [(1, 64), (2, 128), (3, 192)]
    tracker(f"tensorboard={tmp_path / 'b'}", tmp_path, {}).add(point_of(record(1, 4.0)))
    assert shown(tmp_path / "b", "loss") == [(1, 4.0)]
    there = tmp_path / "my run" / "tensorboard"
    assert tracker("tensorboard", there.parent, {}).close() == f"tensorboard --logdir '{there}'"


@pytest.mark.parametrize("files_before", [7, 9])
def test_tensorboard_shows_newest_numbers_of_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_before: int
) -> None:
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(files_before))
    for shift in (0.0, 1.0):
        keeper = tracker("tensorboard", tmp_path, {})
        for repeat in range(12):  # a training that was resumed many times
            for n in range(repeat + 1, 14):
                keeper.add(point_of(record(n, n + repeat + shift)))
        keeper.close()
    expected = [(n, n + min(n - 1, 11) + 1.0) for n in range(1, 14)]
    assert shown(tmp_path / "tensorboard", "loss") == expected


@pytest.mark.broad
def test_wandb_stores_run_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    keeper = tracker("wandb=mine", tmp_path, {"seed": 1234})
    for n in (1, 2):
        keeper.add(point_of(record(n, 1 / n)))
    after = keeper.close()
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert after == f"wandb sync {kept.parent}"
    words = (b"mine", b"loss", b"tokens", b"seed", b"1234")
    began = time.monotonic()
    # wandb writes in a separate process, which may end after the run.
    while not all(word in kept.read_bytes() for word in words):
        assert time.monotonic() - began < WRITTEN_SECONDS, [w for w in words if w not in kept.read_bytes()]
        time.sleep(0.05)


def test_unknown_kind_and_missing_library_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--to tensorbord: 'tensorbord'.*tensorboard or wandb"):
        tracker("tensorbord", tmp_path, {})

    def missing(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(tracking.importlib, "import_module", missing)
    for kind in ("tensorboard", "wandb"):
        with pytest.raises(MachineError, match=rf"{kind}.*pip install -e '\.\[track\]'"):
            tracker(kind, tmp_path, {})
