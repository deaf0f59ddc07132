"""`trivium models` lists what --model accepts by name."""

import json

import pytest

from trivium.cli.models import facts
from trivium.cli.run_config import Given, resolve
from trivium.config import preset_names


def test_list_has_every_preset_with_its_parameters(call) -> None:
    listed = json.loads(call("models", "--json").stdout)
    assert {one["name"] for one in listed} == set(preset_names())
    sizes = {one["name"]: one["parameters"] for one in listed}
    assert sizes["llama-3-8b"] == 8_030_261_248 and sizes["pythia-70m"] == 70_426_624
    lines = call("models").stdout.splitlines()
    assert lines[0].split() == "name parameters active layers hidden heads context vocabulary tokenizer license".split()
    assert len(lines) == 1 + len(preset_names())


def test_one_model_is_shown_with_its_settings(call) -> None:
    done = call("models", "gemma-3-4b")
    assert done.returncode == 0 and "3,880,263,168" in done.stdout and "hf:google/gemma-3-4b-pt" in done.stdout
    assert "plan.model.window" in done.stdout and "1024" in done.stdout
    tree = json.loads(call("models", "llama-3.1-8b", "--json").stdout)
    assert tree["context"] == 131072 and tree["model"]["rope_scaling"]["factor"] == 8.0


def test_fact_that_is_not_published_is_absent() -> None:
    assert facts("mt-nlg-530b", resolve(Given("mt-nlg-530b")))["license"] is None


@pytest.mark.parametrize(("name", "meant"), [("lama-3-8b", "llama-3-8b"), ("meta-llama/Llama-3.1-8", "hf:meta-llama")])
def test_unknown_name_is_refused_with_the_nearest(call, name: str, meant: str) -> None:
    done = call("models", name)
    assert done.returncode == 2 and f"there is no preset '{name}'; did you mean '{meant}" in done.stderr
