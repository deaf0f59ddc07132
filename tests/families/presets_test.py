"""The presets of families have the sizes that their sources publish."""

import pytest

from trivium.config import preset_names
from trivium.plan.parameters import count
from trivium.plan.plan import Plan

PARAMETERS = {
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "qwen-2.5-0.5b": 494_032_768,
    "qwen-2.5-1.5b": 1_543_714_304,
    "qwen-2.5-3b": 3_085_938_688,
    "qwen-2.5-7b": 7_615_616_512,
    "qwen-2.5-14b": 14_770_033_664,
    "qwen-2.5-32b": 32_763_876_352,
    "qwen-2.5-72b": 72_706_203_648,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    plan = Plan.from_preset(name)
    assert plan.check() == [] and count(plan.model) == PARAMETERS[name]


def test_presets_of_families_are_listed_with_the_others() -> None:
    assert {"demo", "llama-3-8b"} <= set(preset_names())
