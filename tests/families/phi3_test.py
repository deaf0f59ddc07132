"""Phi-3 has the logits of transformers here, in the engine and in the plain reading of its folder."""

from pathlib import Path

import pytest
import torch

from trivium.checkpoint.load import Checkpoint
from trivium.config import build
from trivium.interchange.bring import import_hf
from trivium.interchange.export import TOLERANCE, logits
from trivium.model.whole import WholeModel
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan


@pytest.mark.parametrize("window", [None, 5])
def test_a_model_with_joined_matrices_has_the_same_logits(tmp_path: Path, window: int | None) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.Phi3Config(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        vocab_size=60,
        sliding_window=window,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    theirs = transformers.Phi3ForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    source = Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours"))
    model = build(Plan, source.manifest["plan"]).model
    here = WholeModel(model, precision="fp32", device=torch.device("cpu"))
    for p in parameters(model):
        box = Box((0,) * len(p.shape), p.shape)
        here.load(p.name, source.read(f"weights/{p.name}", box, torch.float32))
    rows = torch.randint(0, 60, (3, 16))
    with torch.no_grad():
        expected = theirs(rows).logits
    assert (expected - here.logits(rows.tolist())).abs().max() <= TOLERANCE
    assert (expected - logits(tmp_path / "theirs", rows)).abs().max() <= TOLERANCE
