"""The results of a recipe's run, as one small tree: the content of curve.json."""

import math
from pathlib import Path
from statistics import median
from typing import Any

from trivium.errors import DataError
from trivium.tokens.manifest import read_tokens_manifest
from trivium.training.metrics import METRICS, records
from trivium.untrusted import read_json

FORMAT = "trivium-curve-1"


def curve_of(run: Path, recipe: str, peak: float | None) -> dict[str, Any]:
    """Collect the curve of a finished run. peak: FLOP/s of its accelerators together, or None on CPUs.

    bits_per_byte is of the validation split: its loss in bits, times its tokens per byte of text. Speeds are medians
    over the steps. Raises DataError if the run has no validation loss.
    """
    points, speeds, flops, losses = [], [], [], []
    for record in records(run / "training" / METRICS):
        if "validation_loss" in record:
            points.append({"step": record["step"], "validation_loss": record["validation_loss"]})
        if "loss" in record and "batch_hash" in record:
            losses.append(record["loss"])
            speeds.append(record.get("tokens_per_second", 0.0))
            flops.append(record.get("model_flops_per_second", 0.0))
    if not points or not losses:
        raise DataError(f"{run} has no finished training with a validation loss; run the recipe to its end")
    manifest, config = read_tokens_manifest(run / "tokens"), read_json(run / "config.json")
    held_out = manifest["totals"]["validation"]
    tokens_per_byte = held_out["tokens"] / held_out["text_bytes"]
    asked = run / "evaluation" / "results.json"
    cloze = read_json(asked)["tasks"].get("last_word", {}) if asked.is_file() else {}
    return {
        "format": FORMAT,
        "recipe": recipe,
        "seed": config["seed"],
        "text_bytes": sum(entry["text_bytes"] for entry in read_json(run / "harvest" / "sources.json")),
        "points": points,
        "training_loss": losses[-1],
        "bits_per_byte": points[-1]["validation_loss"] / math.log(2) * tokens_per_byte,
        "cloze_accuracy": {shots: result["accuracy"] for shots, result in cloze.items()},
        "tokens_per_second": median(speeds),
        "share_of_peak": median(flops) / peak if peak else None,
        "training_seconds": read_json(run / "seconds.json").get("train"),
    }
