"""Granite computes what transformers and the oracle compute, with its four multipliers."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from plans import small
from ranks import on_ranks
from trivium.certify.certificate import certificate, examine
from trivium.certify.layouts import ROTARY
from trivium.certify.reference import Reference, compute_reference
from trivium.certify.ways import FAR
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.config import build
from trivium.errors import ConfigError
from trivium.interchange.bring import import_hf
from trivium.interchange.export import TOLERANCE, export_hf, logits
from trivium.model.whole import WholeModel
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan

MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.3,
    "logits_scaling": 4.0,
}
OURS = {**ROTARY, "embedding_scale": 3.0, "score_scale": 0.2, "residual_scale": 0.3, "logits_scale": 0.25}


@pytest.mark.parametrize("tied", [True, False])
def test_models_of_transformers_have_the_same_logits_here_and_come_back(tied: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GraniteConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        vocab_size=60,
        tie_word_embeddings=tied,
        **MULTIPLIERS,
    )
    torch.manual_seed(0)
    theirs = transformers.GraniteForCausalLM(config).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(torch.randn(p.shape) / 6)
    theirs.save_pretrained(tmp_path / "theirs")
    source = Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours"))
    model = build(Plan, source.manifest["plan"]).model
    here = WholeModel(model, precision="fp32", device=torch.device("cpu"))
    for p in parameters(model):
        here.load(p.name, source.read(f"weights/{p.name}", Box((0,) * len(p.shape), p.shape), torch.float32))
    rows = torch.randint(0, 60, (3, 16))
    with torch.no_grad():
        expected = theirs(rows).logits
    assert (expected - here.logits(rows.tolist())).abs().max() <= TOLERANCE
    assert (expected - logits(tmp_path / "theirs", rows)).abs().max() <= TOLERANCE
    export_hf(source, tmp_path / "back", tokenizer=None)
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    again = transformers.GraniteForCausalLM.from_pretrained(tmp_path / "back")
    assert {name: getattr(again.config, name) for name in MULTIPLIERS} == MULTIPLIERS


def certified(place: Place, plan: Plan, reference: Reference) -> None:
    with FAR.taken():
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends, by_memory=False)
        assert certificate(plan, examine(plan, mesh, reference, FAR).deviations).passed


@pytest.mark.parametrize(
    "over", [{"tensor": 2, "model": {**OURS, "z_loss": 0.05}}, {"pipeline": 2, "model": {**OURS, "head": "untied"}}]
)
def test_it_is_certified_in_fp64(over: dict) -> None:
    plan = small(**over, precision={"weights": "fp64"})
    on_ranks(2, certified, plan, compute_reference(plan))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"residual_scale": 0.5, "wiring": "side_by_side"}, "residual_scale is 0.5.*set plan.model.wiring=sequential"),
        ({"logits_scale": 0.5, "logits_cap": 3.0}, "logits_scale is 0.5 and plan.model.logits_cap is 3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        small(model=given)
