"""Gemma 2 and 3 compute what transformers and the oracle compute, in every layout."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plans import small
from ranks import on_ranks
from trivium.certify.certificate import certificate, examine
from trivium.certify.reference import compute_reference
from trivium.certify.ways import EVERY_WAY, FAR, WAYS, Way
from trivium.checkpoint.load import Checkpoint
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.config import build
from trivium.errors import ConfigError
from trivium.interchange.bring import import_hf
from trivium.interchange.export import TOLERANCE, export_hf, logits
from trivium.interchange.names import config_of
from trivium.model.generate import Choice, Draft, continue_drafts
from trivium.model.whole import WholeModel
from trivium.plan.parameters import Box, count, parameters
from trivium.plan.plan import Plan

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 16,
    "vocab_size": 60,
    "query_pre_attn_scalar": 7,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
ALL, SLIDES = "full_attention", "sliding_attention"
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("Gemma2", {"sliding_window": 5, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0}),
    "gemma2 without caps": ("Gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2, one window at the end": (
        "Gemma2",
        {"sliding_window": 3, "layer_types": [ALL, ALL, ALL, SLIDES], "tie_word_embeddings": False},
    ),
    "gemma3": ("Gemma3", {"sliding_window": 5, "layer_types": [SLIDES, SLIDES, ALL, SLIDES]}),
    "gemma3 that sees all": ("Gemma3", {"layer_types": [ALL] * 4, "final_logit_softcapping": 3.0}),
    "gemma3, slowed": (
        "Gemma3",
        {
            "sliding_window": 4,
            "layer_types": [ALL, SLIDES, ALL, SLIDES],
            "rope_parameters": {
                ALL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0},
                SLIDES: {"rope_type": "default", "rope_theta": 20.0},
            },
        },
    ),
}
# Published totals: the model cards' sizes with the embedding counted once.
PUBLISHED = {
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
}
GEMMA = {
    "norm": "rms_norm_offset",
    "feed_forward": "gated_gelu",
    "positions": "rotary",
    "bias": "none",
    "wiring": "sandwich",
    "qk_norm": "each_head",
    "embedding_scale": 4.9,
    "score_scale": 0.3,
    "score_cap": 1.5,
    "logits_cap": 2.0,
    "window": 5,
    "rope_base": 10.0,
    "pattern": [{"times": 1}, {"window": None, "rope_base": 100.0}],
}


def theirs(name: str, folder: Path) -> Any:
    """Create a model of transformers with random weights, saved in `folder`."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    family, settings = THEIRS[name]
    kind = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, kind)(**SIZES, **settings)
    config._attn_implementation = "eager"  # the only one that caps scores
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape) / 6)
    model.save_pretrained(folder)
    return model


def ours(checkpoint: Checkpoint) -> WholeModel:
    model = build(Plan, checkpoint.manifest["plan"]).model
    whole = WholeModel(model, precision="fp32", device=torch.device("cpu"))
    for p in parameters(model):
        whole.load(p.name, checkpoint.read(f"weights/{p.name}", Box((0,) * len(p.shape), p.shape), torch.float32))
    return whole


@pytest.mark.parametrize("name", THEIRS)
def test_models_of_transformers_have_the_same_logits_here_and_come_back(name: str, tmp_path: Path) -> None:
    model = theirs(name, tmp_path / "theirs")
    source = Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours"))
    here, rows = ours(source), torch.randint(0, 60, (3, 16))
    with torch.no_grad():
        expected = model(rows).logits
    assert (expected - here.logits(rows.tolist())).abs().max() <= TOLERANCE
    assert (expected - logits(tmp_path / "theirs", rows)).abs().max() <= TOLERANCE
    drafts = [
        Draft(rows[n, :size].tolist(), Choice(0, 0, 1, 0), lambda drawn: False, 8) for n, size in ((0, 6), (1, 3))
    ]
    continue_drafts(here, drafts)
    model.generation_config.eos_token_id = None
    for n, draft in enumerate(drafts):
        row = rows[n : n + 1, : len(draft.text) - 8]
        greedy = model.generate(row, attention_mask=torch.ones_like(row), max_new_tokens=8, do_sample=False)
        assert greedy[0].tolist() == draft.text
    export_hf(source, tmp_path / "back", tokenizer=None)
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    again = type(model).from_pretrained(tmp_path / "back", attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(again(rows).logits, expected)


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(name: str) -> None:
    plan = Plan.from_preset(name)
    assert plan.check() == [] and count(plan.model) == PUBLISHED[name]


def certified(place: Place, plan: Plan, reference: Any, way: Way) -> None:
    with way.taken():
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends, by_memory=way.by_memory)
        assert certificate(plan, examine(plan, mesh, reference, way).deviations).passed


@pytest.mark.parametrize(
    ("way", "over"),
    [
        *((way, {}) for way in EVERY_WAY[: len(WAYS)]),
        (FAR, {"tensor": 2, "sequence_parallel": True}),
        (FAR, {"context": 2}),
        (WAYS[2], {"context": 2, "model": {"documents": "apart", "end_of_text": 3}}),
        (FAR, {"context": 2, "context_attention": "ulysses"}),
        (FAR, {"pipeline": 2, "recompute": {"mode": "attention"}, "model": {"z_loss": 0.05}}),
    ],
)
def test_it_is_certified_in_fp64(way: Way, over: dict[str, Any]) -> None:
    plan = small(**{**over, "model": {**GEMMA, **over.get("model", {})}, "precision": {"weights": "fp64"}})
    assert plan.check() == []
    on_ranks(plan.layout.world_size, certified, plan, compute_reference(plan), way)


def test_layers_of_one_kind_with_other_rotary_positions_are_not_exported() -> None:
    bases = [{"window": 5}, {"window": 5, "rope_base": 9.0}]
    given = {**GEMMA, "score_cap": None, "embedding_scale": 24**0.5, "score_scale": 7**-0.5, "pattern": bases}
    with pytest.raises(ConfigError, match="layers with a window 2 kinds of rotary positions"):
        config_of(small(model=given).model, dtype="float32")
