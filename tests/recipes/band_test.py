"""Bands of curves: where a run with another seed lies, and what is compared with them."""

import numpy as np
import pytest

from trivium.errors import DataError
from trivium.recipes.band import CONFIDENCE, band_of, compare
from trivium.seeds import generator_for

STEPS = (50, 100, 150, 200)


def curve(seed: int, shift: float = 0.0, text_bytes: int = 1000) -> dict:
    noise = generator_for(seed, "band").normal(size=len(STEPS) + 1) * 0.01 + shift
    points = [{"step": s, "validation_loss": 4 - s / 100 + e} for s, e in zip(STEPS, noise[1:], strict=True)]
    return {
        "recipe": "small",
        "seed": seed,
        "text_bytes": text_bytes,
        "points": points,
        "bits_per_byte": 2 + noise[0],
        "training_seconds": 1.0,
    }


def test_a_run_with_another_seed_is_inside_at_all_points_as_often_as_the_band_says() -> None:
    inside = []
    for trial in range(150):
        band = band_of([curve(10 * trial + n) for n in range(5)])
        inside.append(all(ok for *_, ok in compare(band, curve(10 * trial + 9))))
    share = np.mean(inside)
    assert CONFIDENCE - 0.03 < share <= 1


def test_a_curve_that_is_off_by_ten_deviations_is_outside_and_named() -> None:
    band = band_of([curve(n) for n in range(8)])
    off = curve(9)
    off["points"][2]["validation_loss"] += 0.1
    assert [name for name, *_, ok in compare(band, off) if not ok] == ["150"]
    assert not any(ok for *_, ok in compare(band, curve(9, shift=-0.2)))


def test_curves_of_other_text_or_other_steps_are_refused() -> None:
    band = band_of([curve(n) for n in range(3)])
    with pytest.raises(DataError, match="the run has 2,000 bytes of text"):
        compare(band, curve(9, text_bytes=2000))
    short = curve(9)
    short["points"] = short["points"][:2]
    with pytest.raises(DataError, match="no value for 150, 200"):
        compare(band, short)
    with pytest.raises(DataError, match="each of another seed"):
        band_of([curve(1), curve(1), curve(2)])
    with pytest.raises(DataError, match="after different steps"):
        band_of([curve(1), curve(2), short])
