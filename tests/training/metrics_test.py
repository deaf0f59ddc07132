"""Damage to metrics costs lines, never a training."""

import io
import os
import tracemalloc
from pathlib import Path

import pytest

from trivium.cli.live import loss_note
from trivium.training import metrics
from trivium.training.metrics import append, forget_after, is_evaluated, last_step, newest_steps, read

DAMAGE = [
    b"\xff\xff\xfe\n",
    b"12\n",
    b"null\n",
    b'{"loss": 1.0}\n',
    b'{"step": "x", "loss": 9.0}\n',
    b'{"step": 3, "lo',
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_line_that_is_no_record_is_ignored(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 3):
        append(path, {"step": step, "loss": 4.0 + step})
    path.write_bytes(path.read_bytes() + damage)
    assert [r["step"] for r in read(path)[:3]] == [1, 2, 3]
    assert last_step(path) == 3 and loss_note(newest_steps(path)) == "loss 7.000"
    forget_after(path, 2)
    assert read(path) == [{"step": 1, "loss": 5.0}, {"step": 2, "loss": 6.0}]


def test_first_record_of_a_file_is_the_newest_one_and_evaluations_are_told_from_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, {"step": 1, "loss": 4.0, "batch_hash": "a"})
    assert newest_steps(path)[-1]["step"] == last_step(path) == 1 and not is_evaluated(path, 1)
    append(path, {"step": 1, "validation_loss": 4.0})
    assert is_evaluated(path, 1) and not is_evaluated(path, 2)


def test_forgetting_and_finding_steps_needs_constant_memory(tmp_path: Path) -> None:
    path, peaks = tmp_path / "metrics.jsonl", []
    for steps in (2000, 8000):
        path.write_text("".join(f'{{"step": {n}, "batch_hash": "a"}}\n' for n in range(1, steps + 1)))
        tracemalloc.start()
        assert not is_evaluated(path, steps)
        forget_after(path, steps - 1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert [r["step"] for r in read(path)] == list(range(1, steps))
    assert peaks[1] < 1.3 * peaks[0], peaks


SOUND = {"step": 7, "time": 1.5, "tokens": 70, "sequences": 2, "loss": 3, "lr": 1e-3, "batch_hash": "a"}


@pytest.mark.parametrize("wrong", ["x", [1], {"a": 1}, True, 10**400])
@pytest.mark.parametrize("field", sorted(SOUND))
def test_line_with_a_value_of_another_type_is_no_record(tmp_path: Path, field: str, wrong: object) -> None:
    """Code that prints, compares or checks steps computes with these values."""
    if field == "batch_hash" and wrong == "x":
        pytest.skip("a text is its kind")
    path = tmp_path / "metrics.jsonl"
    append(path, SOUND)
    append(path, SOUND | {"step": 8} | {field: wrong})
    assert read(path) == [SOUND]


def test_null_and_not_finite_values_are_dropped_except_as_text_in_events(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for other in ({"lr": None}, {"lr": float("nan")}, {"event": "spike", "lr": "nan"}):
        append(path, SOUND | other)
    without = {name: value for name, value in SOUND.items() if name != "lr"}
    assert read(path) == [without, without, SOUND | {"event": "spike", "lr": "nan"}]
    path.write_bytes(b"[" * 100_000 + b"\n" + b'{"step": -1}\n')
    assert read(path) == []


def test_partial_line_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(path, {"event": "saved"})
    path.write_bytes(path.read_bytes() + b'{"event": "sav')
    append(path, {"event": "resumed"})
    append(path, {"event": "preempted"})
    assert [r["event"] for r in read(path)] == ["saved", "resumed", "preempted"]


class NearlyFull(io.FileIO):
    """On a disk that takes half of a line."""

    def write(self, line) -> int:
        return super().write(line[: len(line) // 2])


def test_full_disk_costs_only_the_line(tmp_path: Path, monkeypatch, capsys) -> None:
    path = tmp_path / "events.jsonl"
    append(path, {"event": "saved"})
    before = path.read_bytes()
    with monkeypatch.context() as full:
        full.setattr(metrics, "open", lambda path, *given, **named: NearlyFull(path, "a+"), raising=False)
        append(path, {"event": "preempted"})
    assert path.read_bytes() == before
    assert "a line was not written: No space left on device" in capsys.readouterr().err
    append(path, {"event": "resumed"})
    assert [r["event"] for r in read(path)] == ["saved", "resumed"]


def test_links_are_not_followed(tmp_path, capsys):
    """A run directory of others may hold one, to any file of this user."""
    mine, path = tmp_path / "letter", tmp_path / "metrics.jsonl"
    mine.write_text("dear")
    path.symlink_to(mine)
    append(path, {"step": 1})
    assert mine.read_text() == "dear" and "was not written" in capsys.readouterr().err
    path.unlink()
    append(path, {"step": 1})
    path.with_suffix(".partial").symlink_to(mine)
    with pytest.raises(OSError):
        forget_after(path, 0)
    assert mine.read_text() == "dear"


def test_event_has_no_password_of_a_url_and_never_waits_for_a_fifo(tmp_path: Path, capsys) -> None:
    path = tmp_path / "events.jsonl"
    append(path, {"event": "failed", "cause": "no answer from https://user:s3cr3t@host/x", "step": 3})
    assert "s3cr3t" not in path.read_text() and "https://***@host/x" in path.read_text()
    assert read(path)[0]["step"] == 3
    path.unlink()
    os.mkfifo(path)
    append(path, {"event": "failed"})
    assert "a line was not written: it is a FIFO, not a regular file" in capsys.readouterr().err
    assert read(path) == [] and newest_steps(path) == []
