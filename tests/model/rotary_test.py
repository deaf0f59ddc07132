"""How much YaRN stretches sines and cosines."""

import math

import pytest

from trivium.model.rotary import Turning
from trivium.plan.rope_scaling import RopeScaling


@pytest.mark.parametrize(
    ("factor", "attention", "expected"),
    [(8.0, None, 0.1 * math.log(8) + 1), (8.0, 1.25, 1.25), (1.0, None, 1.0), (0.5, None, 1.0)],
)
def test_sines_and_cosines_grow_with_the_factor_and_never_shrink(
    factor: float, attention: float | None, expected: float
) -> None:
    """As in the paper's code, where a factor of at most 1 stretches nothing."""
    yarn = RopeScaling(kind="yarn", factor=factor, original=64, slow=1, fast=32, attention=attention)
    assert Turning(8, 10000.0, yarn).magnitude == pytest.approx(expected)
    linear = RopeScaling(kind="linear", factor=factor)
    assert Turning(8, 10000.0, linear).magnitude == Turning(8, 10000.0, None).magnitude == 1.0
