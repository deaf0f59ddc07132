"""The presets of families have the sizes that their sources publish."""

import pytest

from trivium.config import preset_names, read_preset
from trivium.plan.parameters import count, parameters
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
    "granite-3.0-2b": 2_533_531_648,
    "granite-3.0-8b": 8_170_848_256,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    # The model cards' sizes with the embedding counted once.
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
}
# Of Pythia, and without embedding and head (EleutherAI/pythia, README).
PYTHIA = {
    "14m": (14_067_712, 1_189_888),
    "31m": (30_494_720, 4_739_072),
    "70m": (70_426_624, 18_915_328),
    "160m": (162_322_944, 85_056_000),
    "410m": (405_334_016, 302_311_424),
    "1b": (1_011_781_632, 805_736_448),
    "1.4b": (1_414_647_808, 1_208_602_624),
    "2.8b": (2_775_208_960, 2_517_652_480),
    "6.9b": (6_857_302_016, 6_444_163_072),
    "12b": (11_846_072_320, 11_327_027_200),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    plan = Plan.from_preset(name)
    assert plan.check() == [] and count(plan.model) == PARAMETERS[name]


@pytest.mark.parametrize("size", PYTHIA)
def test_each_preset_of_the_suite_has_its_published_size_and_schedule(size: str) -> None:
    plan, training = Plan.from_preset(f"pythia-{size}"), read_preset(f"pythia-{size}")["training"]
    total, inner = PYTHIA[size]
    assert plan.check() == [] and count(plan.model) == total
    tables = sum(p.elements for p in parameters(plan.model) if p.padded)
    assert total - tables == inner
    assert plan.tokens(plan.batch.sequences) == 2_097_152 and training["steps"] == 143_000
    assert training["warmup_tokens"] == 1430 * 2_097_152


def test_presets_of_families_are_listed_with_the_others() -> None:
    assert {"demo", "llama-3-8b"} <= set(preset_names())
