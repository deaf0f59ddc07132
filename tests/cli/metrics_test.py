"""`trivium metrics`: what it prints, what it writes, and when it ends."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trivium.cli import main as entry
from trivium.cli import metrics as verb
from trivium.errors import ConfigError
from trivium.provenance import STAMP, write_json
from trivium.training.metrics import METRICS, TASKS, append
from trivium.training.record import RUN


def record(step: int) -> dict[str, float]:
    return {
        "step": step,
        "time": 1e9,
        "tokens": 1000 * step,
        "loss": 5 / step,
        "lr": 1e-3,
        "gradient_norm": 0.5,
        "tokens_per_second": 12_000.0,
        "model_flops_per_second": 3e9,
    }


@pytest.fixture
def training(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "training"
    folder.mkdir(parents=True)
    for n in range(1, 5):
        append(folder / METRICS, record(n))
    append(folder / METRICS, {"step": 4, "time": 1e9, "tokens": 4000, "validation_loss": 1.5})
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr(verb, "POLL_SECONDS", 0.05)

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["trivium", "metrics", *words])
        with pytest.raises(SystemExit) as stopped:
            entry.main()
        return int(stopped.value.code or 0)

    return run


def test_the_newest_steps_are_a_table(call, training: Path, capsys) -> None:
    assert call(str(training.parent), "--last", "3") == 0
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["step", "tokens", "loss", "validation", "lr", "norm", "tokens/s", "FLOP/s"]
    assert rows == [
        ["3", "3K", "1.6667", "0.001", "0.5", "12K", "3", "GFLOP"],
        ["4", "4K", "1.2500", "0.001", "0.5", "12K", "3", "GFLOP"],
        ["4", "4K", "1.5000"],
    ]


@pytest.mark.parametrize("name", [*verb.FORMS, "step"])
@pytest.mark.parametrize("way", [(), ("--to", "tensorboard")], ids=["printed", "handed over"])
def test_a_line_with_a_value_of_another_kind_is_passed_over(call, training: Path, name, way, capsys) -> None:
    append(training / METRICS, record(5) | {name: ["x"]})
    assert call(str(training.parent), *way) == 0
    told = capsys.readouterr().out
    assert "5 records written" in told if way else told.count("\n") == 6


def test_following_prints_what_comes_and_ends_with_the_training(call, training: Path, capsys) -> None:
    def go_on() -> None:
        append(training / METRICS, record(5))
        (training / STAMP).write_text("{}")

    later = threading.Timer(0.3, go_on)
    later.start()
    assert call(str(training.parent), "--last", "1", "--follow") == 0
    later.join()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["step", "4", "5"]


def test_all_steps_are_handed_over(call, training: Path, capsys) -> None:
    assert call(str(training.parent), "--to", "tensorboard") == 0
    told = capsys.readouterr().out
    assert f"5 records written; next: tensorboard --logdir {training.parent / 'tensorboard'}" in told
    assert list((training.parent / "tensorboard").iterdir())


def test_tensorboard_shows_every_step_once_also_beside_tasks_and_after_a_second_export(call, training: Path) -> None:
    append(training / TASKS, {"step": 2, "time": 1e9, "tasks": {"hans": {"0": {"accuracy": 0.5}}}})
    for _ in range(2):
        assert call(str(training.parent), "--to", "tensorboard") == 0
        events = EventAccumulator(str(training.parent / "tensorboard"))
        events.Reload()
        assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4]
        assert [event.step for event in events.Scalars("tasks/hans/0/accuracy")] == [2]


def test_a_tool_is_told_what_was_trained_whatever_other_verbs_were_asked_since(
    call, training: Path, monkeypatch
) -> None:
    told = []

    def tracker(kind, run, config, *, online):
        told.append(config)
        raise ConfigError("enough")

    monkeypatch.setattr("trivium.interchange.tracking.tracker", tracker)
    write_json(training.parent / "config.json", {"plan": "of another verb", "seed": 2, "tokens": {"a": 1}})
    write_json(training / RUN, {"plan": "trained", "training": "its", "seed": 1, "tokens": "there"})
    call(str(training.parent), "--to", "wandb")
    assert told == [{"plan": "trained", "training": "its", "seed": 1, "tokens": {"a": 1}}]


def test_a_file_in_the_place_of_a_folder_of_events_is_refused(call, training: Path, capsys) -> None:
    (training.parent / "file").write_text("")
    assert call(str(training.parent), "--to", f"tensorboard={training.parent / 'file'}") == 2
    assert "is a file; name a folder" in capsys.readouterr().err


def test_a_run_without_metrics_and_a_tool_that_is_not_known_are_refused(call, training: Path, capsys) -> None:
    assert call(str(training)) == 4
    assert "metrics.jsonl is missing" in capsys.readouterr().err
    assert call(str(training.parent), "--to", "mlflow") == 2


def test_following_a_training_that_has_not_begun_says_what_it_waits_for(call, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "later" / "training"

    def begin() -> None:
        folder.mkdir(parents=True)
        append(folder / METRICS, record(1))
        (folder / STAMP).write_text("{}")

    later = threading.Timer(0.3, begin)
    later.start()
    assert call(str(folder.parent), "--follow") == 0
    later.join()
    told = capsys.readouterr()
    assert f"waiting for {folder / METRICS}; `trivium train --out {folder.parent}`" in told.err
    assert [line.split()[0] for line in told.out.splitlines()] == ["step", "1"]


def test_no_line_is_wider_than_a_terminal_and_no_number_touches_another(call, training: Path, capsys) -> None:
    wide = {"step": 1_234_567, "time": 1e9, "tokens": 999_499_000_000, "loss": 12.34567, "validation_loss": 12.34567,
            "lr": 1.23456e-05, "gradient_norm": 1.23456e-05, "tokens_per_second": 123_456_789.0,
            "model_flops_per_second": 1.234e17}  # fmt: skip
    append(training / METRICS, wide)
    assert call(str(training.parent)) == 0
    *_, last = lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 80
    assert last.split() == ["1234567", "999B", "12.3457", "12.3457", "1.23e-05", "1.235e-05", "123M", "123", "PFLOP"]
