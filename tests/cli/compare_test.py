"""Trainings side by side: after as many tokens, the best first, with the settings that tell them apart."""

import json
import tracemalloc
from pathlib import Path

import pytest

from trivium.cli.metrics import AVERAGED_STEPS, comparison
from trivium.cli.run_config import Given, resolve
from trivium.errors import DataError
from trivium.training.metrics import METRICS, append
from trivium.training.record import Record, read_record, write_record


def trained(run: Path, *sets: str, steps: int, loss: float) -> Path:
    config, folder = resolve(Given("demo", sets)), run / "training"
    folder.mkdir(parents=True)
    write_record(Record(folder, run.parent / "tokens", config.plan, config.training, config.seed, ()))
    for step in range(1, steps + 1):
        append(folder / METRICS, {"step": step, "tokens": 10 * step, "loss": loss + 1 / step})
        if step % 20 == 0:
            append(folder / METRICS, {"step": step, "tokens": 10 * step, "validation_loss": loss + 2 / step})
    return run


def test_losses_are_compared_after_the_tokens_that_all_have_seen(tmp_path: Path) -> None:
    short = trained(tmp_path / "short", "training.lr=0.001", steps=40, loss=3.0)
    long = trained(tmp_path / "long", "training.lr=0.002", steps=80, loss=2.0)
    head, *rows = (line.split() for line in comparison([short, long])[:3])
    assert head == ["run", "validation", "loss", "tokens", "lr"]
    mean = sum(1 / step for step in range(41 - AVERAGED_STEPS, 41)) / AVERAGED_STEPS
    assert rows == [
        [str(long), "2.0500", f"{2 + mean:.4f}", "800", "0.002"],
        [str(short), "3.0500", f"{3 + mean:.4f}", "400", "0.001"],
    ]


def test_many_differences_are_named_and_a_field_without_its_section_only_where_that_is_clear(tmp_path: Path) -> None:
    fields = ("layers=2", "hidden=64", "heads=2", "sequence=64", "dropout=0.1", "ffn=128", "init_std=0.1")
    one = trained(tmp_path / "one", *(f"plan.model.{field}" for field in fields), steps=1, loss=1.0)
    other = trained(tmp_path / "other", "plan.batch.sequences=128", steps=1, loss=1.0)
    head, *_, last = comparison([one, other])
    assert "plan.batch" not in head and "dropout" in head
    assert "plan.model.sequence too" in last


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere/training/metrics.jsonl is missing"):
        comparison([tmp_path / "nowhere"])


def test_memory_does_not_grow_with_the_number_of_steps(tmp_path: Path) -> None:
    """Neither that of a comparison, nor that of looking up a step of a record."""
    runs = [trained(tmp_path / name, steps=1, loss=3.0) for name in ("short", "long")]
    for run, steps in zip(runs, (2_900, 3_000), strict=True):
        lines = (
            json.dumps({"step": step, "sequences": 1, "tokens": 10 * step, "loss": 1 / step, "note": "x" * 300})
            for step in range(1, steps + 1)
        )
        (run / "training" / METRICS).write_text("\n".join(lines) + "\n")
    comparison(runs)  # imports
    tracemalloc.start()
    comparison(runs)
    record = read_record(runs[1] / "training")
    assert record.steps_done == 3_000 and record.logged_of(2_999)["tokens"] == 29_990
    assert tracemalloc.get_traced_memory()[1] < 1_500_000
    tracemalloc.stop()
