"""The presets of families have the sizes that their sources publish."""

import pytest

from trivium.config import preset_names
from trivium.plan.parameters import count
from trivium.plan.plan import Plan

PARAMETERS = {"llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3-405b": 405_853_388_800}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    plan = Plan.from_preset(name)
    assert plan.check() == [] and count(plan.model) == PARAMETERS[name]


def test_presets_of_families_are_listed_with_the_others() -> None:
    assert {"demo", "llama-3-8b"} <= set(preset_names())
