"""Latent attention: what is cached, how it is read, what the backward keeps, and layouts that are certified."""

import math
from typing import Any

import pytest
import torch

from cost.activations_test import predicted
from cost.counted_memory import counted
from families.certified_test import certified
from model.generation_test import model_of, prompts
from plans import small
from ranks import on_ranks
from trivium.certify.layouts import ADAPTERS, DEEPSEEK, LATENT, YARN
from trivium.certify.reference import compute_reference
from trivium.certify.ways import FAR
from trivium.cost.compute import layer_flops
from trivium.errors import ConfigError
from trivium.model.kv_cache import KVCache
from trivium.plan.latent import Latent
from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.layer import Layer
from trivium.plan.rope_scaling import RopeScaling

LITE = {**DEEPSEEK, "latent": LATENT}
V2 = {**DEEPSEEK, "latent": {**LATENT, "query_rank": 6}, "rope_scaling": {**YARN, "mscale_all_dim": 0.7}}
V3_EXPERTS = {
    "count": 4,
    "chosen": 2,
    "columns": 8,
    "scores": "sigmoid",
    "scale": 2.5,
    "groups": 2,
    "chosen_groups": 1,
    "group_score": "two_largest",
    "shared": 8,
    "bias_rate": 0.01,
    "balance_loss": 0.1,
    "balance_scope": "sequence",
}
V3 = {**V2, "feed_forward": "experts", "experts": V3_EXPERTS, "first": [{"times": 1, "feed_forward": "gated"}]}
SPLIT = {"tensor": 2, "sequence_parallel": True}
DEEPSEEK_V2 = Latent(kv_rank=512, query_rank=1536, plain_columns=128, rotated_columns=64, value_columns=128)


@pytest.mark.parametrize("adapters", [(), ({"match": "*.kv_up", "settings": {"r": 2}},)])
@pytest.mark.parametrize("more", [1, 40])  # tokens after the prompt; 40 are enough to make keys and values again
@torch.inference_mode()
def test_what_is_read_from_cached_latents_is_what_is_read_at_once(more: int, adapters: tuple[Any, ...]) -> None:
    model = model_of({**V2, "sequence": 48, "adapters": adapters})
    for name, weight in model.stage.named_parameters():
        if ".adapter." in name:
            torch.nn.init.normal_(weight, std=0.5)
    text = torch.tensor(prompts(model.model, (7 + more,))).T
    cache = KVCache(7 + more)
    model.hidden(text[:7], cache=cache)
    cache.keep(7)
    later = torch.arange(7, 7 + more)
    cache.mask = torch.zeros(more, 7 + more, dtype=torch.float64).masked_fill_(
        torch.arange(7 + more) > later[:, None], -torch.inf
    )[None, None]
    found, expected = model.hidden(text[7:], positions=later[:, None], cache=cache), model.hidden(text)
    assert found is not None and expected is not None
    torch.testing.assert_close(found, expected[7:], rtol=1e-10, atol=1e-10)


@torch.inference_mode()
def test_cache_has_the_latent_and_the_rotated_columns_of_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    original = KVCache.write
    monkeypatch.setattr(KVCache, "write", lambda self, layer, *new: written.extend(new) or original(self, layer, *new))
    model = model_of(V2)
    model.hidden(torch.tensor(prompts(model.model, (5, 5))).T, cache=KVCache(5))
    rows = LATENT["kv_rank"] + LATENT["rotated_columns"]
    assert [x.shape for x in written] == [(2, 1, 5, rows)] * model.model.layers


@pytest.mark.parametrize(
    "over",
    [
        {},
        SPLIT,
        {**SPLIT, "recompute": {"mode": "attention"}},
        {"tensor": 4, "context": 2},
        {"context": 2, "context_attention": "ulysses"},
        {"recompute": {"mode": "attention"}},
    ],
)
@pytest.mark.parametrize("model", [LITE, V2])
def test_predicted_bytes_are_those_that_a_layer_keeps(model: dict[str, Any], over: dict[str, Any]) -> None:
    one = {"layers": 1, "vocabulary": 40, **model}
    for weights in ("fp64", "bf16"):
        plan = small(**over, model=one, pipeline=3, partition={"layers": (0, 1, 0)}, precision={"weights": weights})
        assert counted(plan, 1, "with memory").bytes == predicted(plan, 1)


def test_flops_are_those_of_the_products_that_the_paper_names() -> None:
    """The products are those of one token in the attention of DeepSeek-V2 (arXiv 2405.04434, section 2.1)."""
    form = LayerForm(**DEEPSEEK, hidden=5120, heads=128, ffn=1, sequence=4096, latent=DEEPSEEK_V2)
    found = layer_flops(Layer.of(form), 4096, 1)
    down, up = 5120 * (1536 + 512 + 64), 128 * (1536 * 192 + 512 * 256)
    products, core = down + up + 5120 * 128 * 128, 4096 * 128 * (192 + 128)
    assert found.forward == 2 * (products + core + 3 * 5120)
    assert found.backward == 2 * found.forward


def test_scores_grow_with_the_factor_of_yarn() -> None:
    """They are multiplied by mscale(factor, mscale_all_dim)², as by DeepSeek, and by 1 / sqrt(columns of a head)."""
    yarn = RopeScaling(kind="yarn", factor=40, original=4096, slow=1, fast=32, mscale_all_dim=0.707)
    form = LayerForm(**DEEPSEEK, hidden=64, heads=2, sequence=8, latent=DEEPSEEK_V2, rope_scaling=yarn)
    assert form.scale_of_scores == pytest.approx((0.0707 * math.log(40) + 1) ** 2 / math.sqrt(192))
    assert form.model_copy(update={"rope_scaling": None}).scale_of_scores is None
    assert yarn.model_copy(update={"factor": 1.0}).factor_of_scores == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"latent": None}, "plan.model.latent is not given; set plan.model.latent.kv_rank"),
        ({"positions": "learned"}, "positions is 'learned'.*set plan.model.positions=rotary"),
        ({"kv_heads": 2}, "kv_heads is 2.*set plan.model.kv_heads=null"),
        ({"qk_norm": "each_head"}, "qk_norm is each_head.*set plan.model.qk_norm=none"),
        ({"latent": {**LATENT, "rotated_columns": 3}}, r"rotated_columns \(3\) must be even"),
    ],
)
def test_settings_of_other_kinds_of_attention_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        small(model={**LITE, **given})


@pytest.mark.broad
@pytest.mark.parametrize(
    ("model", "over"),
    [
        (LITE, {"tensor": 2}),
        (V2, SPLIT),
        (V2, {"context": 2}),
        (LITE, {"context": 2, "context_attention": "ulysses", "model": {"documents": "apart", "end_of_text": 3}}),
        (V2, {"pipeline": 2, "schedule": "zb-h1", "recompute": {"mode": "attention"}, "model": {"window": 3}}),
        (LITE, {"data": 2, "zero": 3}),
        (V2, {**SPLIT, "recompute": {"mode": "layer"}, "model": {"adapters": ADAPTERS}}),
        (V3, {**SPLIT, "data": 2, "expert": 2, "zero": 1}),
        (V3, {"pipeline": 2, "data": 2, "expert": 2, "schedule": "zb-h1", "recompute": {"mode": "layer"}}),
        (V3, {"context": 2, "expert": 2, "zero": 3}),
    ],
)
def test_latent_attention_is_certified_in_fp64(model: dict[str, Any], over: dict[str, Any]) -> None:
    plan = small(**{**over, "model": {**model, **over.get("model", {})}}, precision={"weights": "fp64"})
    on_ranks(plan.layout.world_size, certified, plan, compute_reference(plan), FAR)
