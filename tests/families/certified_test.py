"""Gemma and Granite are certified in every layout; settings that contradict each other are rejected."""

from typing import Any

import pytest

from plans import small
from ranks import on_ranks
from trivium.certify.certificate import certificate, examine
from trivium.certify.layouts import ROTARY
from trivium.certify.reference import Reference, compute_reference
from trivium.certify.ways import FAR, WAYS, Way
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.errors import ConfigError
from trivium.interchange.names import config_of
from trivium.plan.plan import Plan

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


GRANITE = {**ROTARY, "embedding_scale": 3.0, "score_scale": 0.2, "residual_scale": 0.3, "logits_scale": 0.25}


def certified(place: Place, plan: Plan, reference: Reference, way: Way) -> None:
    with way.taken():
        mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends, by_memory=way.by_memory)
        assert certificate(plan, examine(plan, mesh, reference, way).deviations).passed


@pytest.mark.parametrize(
    ("way", "model", "over"),
    [
        *((way, GEMMA, {}) for way in WAYS),
        (FAR, GEMMA, {"tensor": 2, "sequence_parallel": True}),
        (FAR, GEMMA, {"context": 2}),
        (WAYS[2], {**GEMMA, "documents": "apart", "end_of_text": 3}, {"context": 2}),
        (FAR, GEMMA, {"context": 2, "context_attention": "ulysses"}),
        (FAR, {**GEMMA, "z_loss": 0.05}, {"pipeline": 2, "recompute": {"mode": "attention"}}),
        (FAR, {**GRANITE, "z_loss": 0.05}, {"tensor": 2}),
        (FAR, {**GRANITE, "head": "untied"}, {"pipeline": 2}),
    ],
)
def test_model_is_certified_in_fp64(way: Way, model: dict[str, Any], over: dict[str, Any]) -> None:
    plan = small(**over, model=model, precision={"weights": "fp64"})
    on_ranks(plan.layout.world_size, certified, plan, compute_reference(plan), way)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"residual_scale": 0.5, "wiring": "side_by_side"}, "residual_scale is 0.5.*set plan.model.wiring=sequential"),
        ({"logits_scale": 0.5, "logits_cap": 3.0}, "logits_scale is 0.5 and plan.model.logits_cap is 3"),
    ],
)
def test_contradictory_scales_are_rejected(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        small(model=given)


def test_layers_of_one_kind_with_different_rotary_bases_are_not_exported() -> None:
    bases = [{"window": 5}, {"window": 5, "rope_base": 9.0}]
    given = {**GEMMA, "score_cap": None, "embedding_scale": 24**0.5, "score_scale": 7**-0.5, "pattern": bases}
    with pytest.raises(ConfigError, match="layers with a window 2 kinds of rotary positions"):
        config_of(small(model=given).model, dtype="float32")


def test_caps_of_scores_with_norms_of_queries_are_not_exported() -> None:
    """Gemma 3 of transformers has a field for a cap, which it reads and does not use."""
    with pytest.raises(ConfigError, match=r"no architecture of Hugging Face has .*plan\.model\.score_cap 1\.5"):
        config_of(small(model=GEMMA).model, dtype="float32")
