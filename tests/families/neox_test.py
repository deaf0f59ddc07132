"""GPT-NeoX and Pythia: the suite's sizes, and folders that go there and back unchanged."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trivium.checkpoint.load import Checkpoint
from trivium.config import read_preset
from trivium.interchange.bring import import_hf
from trivium.interchange.export import export_hf
from trivium.plan.parameters import count, parameters
from trivium.plan.plan import Plan

# Total parameters, and those without embedding and head (EleutherAI/pythia, README).
SIZES = {
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
NEOX = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "vocab_size": 60,
}


@pytest.mark.parametrize("size", SIZES)
def test_each_preset_of_the_suite_has_its_published_size_and_schedule(size: str) -> None:
    plan, training = Plan.from_preset(f"pythia-{size}"), read_preset(f"pythia-{size}")["training"]
    total, inner = SIZES[size]
    assert plan.check() == [] and count(plan.model) == total
    tables = sum(p.elements for p in parameters(plan.model) if p.padded)
    assert total - tables == inner
    assert plan.tokens(plan.batch.sequences) == 2_097_152 and training["steps"] == 143_000
    assert training["warmup_tokens"] == 1430 * 2_097_152


@pytest.mark.parametrize("parallel", [True, False])
def test_a_folder_comes_back_with_the_same_names_and_values(tmp_path: Path, parallel: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPTNeoXConfig(**NEOX, use_parallel_residual=parallel, rotary_pct=0.25)
    torch.manual_seed(0)
    transformers.GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "theirs")
    source = Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours"))
    export_hf(source, tmp_path / "back", tokenizer=None)
    theirs, back = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert theirs.keys() == back.keys()
    assert all(torch.equal(theirs[name], back[name]) for name in theirs)
    again = transformers.GPTNeoXForCausalLM.from_pretrained(tmp_path / "back").config
    for field in ("use_parallel_residual", "hidden_act", "rope_parameters", "layer_norm_eps"):
        assert getattr(again, field) == getattr(config, field)
