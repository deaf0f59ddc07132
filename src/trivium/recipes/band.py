"""The band in which the curve of a recipe lies: prediction intervals from runs with several seeds."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from scipy import stats

from trivium.errors import DataError

FORMAT = "trivium-band-1"
CONFIDENCE = 0.99  # probability that a run with another seed is inside at all points
MIN_SEEDS = 3
TEXT_TOLERANCE = 0.01  # relative difference of the bytes of text: formats keep different blanks
Tree = Mapping[str, Any]


def band_of(curves: Sequence[Tree]) -> dict[str, Any]:
    """Return the band of curves with different seeds.

    At each point it is the interval of one more normally distributed run, mean ± t s √(1 + 1/n), with t so that all
    points together are inside with probability CONFIDENCE (Bonferroni).
    """
    seeds = sorted({int(curve["seed"]) for curve in curves})
    if len(seeds) < max(MIN_SEEDS, len(curves)):
        raise DataError(
            f"a band needs {MIN_SEEDS} curves or more, each of another seed; found {len(curves)} of {seeds}"
        )
    steps = [point["step"] for point in curves[0]["points"]]
    if any([point["step"] for point in curve["points"]] != steps for curve in curves):
        raise DataError(f"the curves of seeds {seeds} were validated after different steps; run them with one config")
    values = {str(step): [c["points"][n]["validation_loss"] for c in curves] for n, step in enumerate(steps)}
    values["bits_per_byte"] = [curve["bits_per_byte"] for curve in curves]
    return {
        "format": FORMAT,
        "recipe": curves[0]["recipe"],
        "seeds": seeds,
        "text_bytes": round(mean(curve["text_bytes"] for curve in curves)),
        "confidence": CONFIDENCE,
        "band": {name: _interval(of, len(values)) for name, of in values.items()},
        "training_seconds": [curve["training_seconds"] for curve in curves],
    }


def _interval(values: Sequence[float], points: int) -> dict[str, float]:
    n, middle = len(values), mean(values)
    t = float(stats.t.ppf(1 - (1 - CONFIDENCE) / (2 * points), n - 1))
    reach = t * stdev(values) * math.sqrt(1 + 1 / n)
    return {"mean": middle, "low": middle - reach, "high": middle + reach}


def compare(band: Tree, curve: Tree) -> list[tuple[str, float, Tree, bool]]:
    """Return (name, value, interval, whether it is inside) of every point of a band.

    Raises DataError if the curve is of another text or was validated after other steps.
    """
    here, there = curve["text_bytes"], band["text_bytes"]
    if abs(here - there) > TEXT_TOLERANCE * there:
        raise DataError(
            f"the run has {here:,} bytes of text, and the band of {band['recipe']} was measured on {there:,}; give "
            "--data the text that `trivium recipes` names, in another --out"
        )
    values = {str(point["step"]): point["validation_loss"] for point in curve["points"]}
    values["bits_per_byte"] = curve["bits_per_byte"]
    if missing := [name for name in band["band"] if name not in values]:
        raise DataError(f"the run has no value for {', '.join(missing)} of the band; run the recipe to its end")
    intervals = {name: band["band"][name] for name in values if name in band["band"]}  # in the order of the steps
    return [
        (name, values[name], interval, interval["low"] <= values[name] <= interval["high"])
        for name, interval in intervals.items()
    ]
