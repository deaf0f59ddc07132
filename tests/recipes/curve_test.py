"""The curve of a recipe's run, from the files of its stages."""

import json
import math
from pathlib import Path

import pytest

from trivium.errors import DataError
from trivium.provenance import write_json
from trivium.recipes.curve import curve_of


def write_run(run: Path, lines: list[dict]) -> Path:
    for folder in ("training", "tokens", "harvest", "evaluation"):
        (run / folder).mkdir(parents=True)
    (run / "training/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    totals = {"train": {"tokens": 900, "text_bytes": 3600}, "validation": {"tokens": 100, "text_bytes": 400}}
    write_json(run / "tokens/manifest.json", {"format": "trivium-tokens-1", "totals": totals})
    write_json(run / "harvest/sources.json", [{"text_bytes": 4000}, {"text_bytes": 200}])
    write_json(run / "evaluation/results.json", {"tasks": {"last_word": {"0": {"accuracy": 0.25}}}})
    write_json(run / "config.json", {"seed": 5})
    write_json(run / "seconds.json", {"train": 12.5})
    return run


def step(number: int, speed: float) -> dict:
    about = {"tokens_per_second": speed, "model_flops_per_second": 10 * speed}
    return {"step": number, "loss": 3.0, "batch_hash": "h", **about}


def test_bits_per_byte_are_the_held_out_loss_over_the_bytes_of_its_tokens(tmp_path: Path) -> None:
    lines = [step(1, 1.0), {"step": 1, "validation_loss": 5.0}, step(2, 3.0), step(3, 100.0)]
    lines.append({"step": 3, "validation_loss": 2 * math.log(2)})
    found = curve_of(write_run(tmp_path, lines), "small", peak=60.0)
    # 2 bits for each of 100 tokens, over 400 bytes
    assert found["bits_per_byte"] == pytest.approx(0.5)
    assert [p["step"] for p in found["points"]] == [1, 3] and found["text_bytes"] == 4200
    assert (found["tokens_per_second"], found["share_of_peak"]) == (3.0, 0.5)
    assert (found["seed"], found["training_seconds"], found["cloze_accuracy"]) == (5, 12.5, {"0": 0.25})


def test_a_run_without_a_validation_has_no_curve(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no finished training"):
        curve_of(write_run(tmp_path, [step(1, 1.0)]), "small", peak=None)
