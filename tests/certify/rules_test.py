"""The papers' rules of parameters, against figures written out here, against the engine, and against wrong values."""

import math
from typing import Any

import pytest
import torch

from plans import small, swept
from trivium.certify.layouts import ROTARY
from trivium.certify.oracle.layers import rules_of
from trivium.certify.oracle.terms import Rule
from trivium.certify.plain import first_weights
from trivium.certify.rules import departures, drawn, repetitions, table_problems
from trivium.model.initialise import initial_values
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box, parameters

GPT = {"layers": 8, "hidden": 48, "heads": 4, "vocabulary": 100, "sequence": 16}
LLAMA = {**GPT, **ROTARY, "kv_heads": 2, "head": "untied", "ffn": 72}


def test_the_rules_of_gpt_are_the_papers() -> None:
    """sqrt(1 / (3 x 48)) = 1/12; over sqrt(2 x 8) = 4 for what writes to the residual stream."""
    rules = rules_of(ModelShape(**GPT))
    wide, residual = Rule((0,), 0.0, 1 / 12, True), Rule((0,), 0.0, 1 / 48, True)
    expected = {
        "embedding.tokens.weight": wide._replace(shape=(100, 48)),
        "embedding.positions.weight": wide._replace(shape=(16, 48)),
        "layers.7.attention.norm.weight": Rule((48,), mean=1.0),
        "layers.7.attention.norm.bias": Rule((48,)),
        "layers.7.attention.qkv.weight": wide._replace(shape=(144, 48)),
        "layers.7.attention.qkv.bias": Rule((144,)),
        "layers.7.attention.out.weight": residual._replace(shape=(48, 48)),
        "layers.7.attention.out.bias": Rule((48,)),
        "layers.7.mlp.norm.weight": Rule((48,), mean=1.0),
        "layers.7.mlp.norm.bias": Rule((48,)),
        "layers.7.mlp.up.weight": wide._replace(shape=(192, 48)),
        "layers.7.mlp.up.bias": Rule((192,)),
        "layers.7.mlp.down.weight": residual._replace(shape=(48, 192)),
        "layers.7.mlp.down.bias": Rule((48,)),
        "head.norm.weight": Rule((48,), mean=1.0),
        "head.norm.bias": Rule((48,)),
    }
    assert len(rules) == 2 + 8 * 12 + 2
    for name, rule in expected.items():
        assert rules[name].deviation == pytest.approx(rule.deviation)
        assert rules[name]._replace(deviation=rule.deviation) == rule, name


def test_the_rules_of_llama_have_grouped_keys_and_no_biases() -> None:
    rules = rules_of(ModelShape(**LLAMA))
    assert rules["layers.0.attention.qkv.weight"].shape == ((4 + 2 * 2) * 12, 48)
    assert rules["layers.0.mlp.up.weight"].shape == (2, 72, 48)
    assert rules["head.weight"].shape == (100, 48) and rules["head.weight"].decays
    assert not [name for name in rules if name.endswith("bias") or "positions" in name]
    with_norms = rules_of(ModelShape(**{**LLAMA, "qk_norm": "all_heads", "bias": "qkv"}))
    assert with_norms["layers.0.attention.query_norm.weight"] == Rule((48,), mean=1.0)
    assert with_norms["layers.0.attention.key_norm.weight"] == Rule((24,), mean=1.0)
    assert with_norms["layers.0.attention.qkv.bias"] == Rule((96,))


@pytest.mark.parametrize(("hidden", "width"), [(24, 64), (48, 128), (72, 192), (96, 256), (4096, 10944)])
def test_the_width_of_a_llama_without_a_given_one_is_that_of_the_engine(hidden: int, width: int) -> None:
    model = ModelShape(**{**GPT, **ROTARY, "hidden": hidden})
    assert rules_of(model)["layers.0.mlp.up.weight"].shape[1] == width == model.ffn_width


def test_the_engines_table_follows_the_rules_whatever_the_model() -> None:
    models = {plan.model for plan in swept(4)} | {ModelShape(**GPT), ModelShape(**{**LLAMA, "layers": 1})}
    for model in models:
        assert table_problems(rules_of(model), {p.name: p for p in parameters(model)}) == {}


def _engine(model: ModelShape) -> dict[str, torch.Tensor]:
    return {p.name: initial_values(p, model, 7, Box(tuple(0 for _ in p.shape), p.shape)) for p in parameters(model)}


DEEP: tuple[dict[str, Any], ...] = (
    {"layers": 40, "hidden": 8, "heads": 2},
    {"layers": 40, "hidden": 8, "heads": 2, **ROTARY, "kv_heads": 1, "ffn": 12},
    {"layers": 13, "init_std": 0.3},
)


@pytest.mark.parametrize("shape", DEEP)
def test_the_engines_initial_values_have_the_distributions_of_the_rules(shape: dict[str, Any]) -> None:
    """Forty layers: more than anything they may be counted by."""
    model = small(model=shape).model
    rules, values = rules_of(model), _engine(model)
    assert set(departures(rules, values).values()) == {0.0}
    assert set(repetitions(rules, values).values()) == {0.0}


def test_initial_values_do_not_depend_on_which_part_of_them_is_drawn() -> None:
    model = small().model
    whole = _engine(model)
    for p in parameters(model):
        start, shape = tuple(n // 3 for n in p.shape), tuple(n - n // 3 for n in p.shape)
        part = initial_values(p, model, 7, Box(start, shape))
        assert torch.equal(part, whole[p.name][tuple(slice(a, None) for a in start)])


@pytest.mark.parametrize("wrong", [0.5, 0.9, 1.1, 2**0.5, 2.0])
def test_a_wrong_deviation_is_seen(wrong: float) -> None:
    model = small(model={"layers": 6}).model
    rules = rules_of(model)
    values = {name: w * wrong if rules[name].deviation else w for name, w in first_weights(model, 3).items()}
    found = departures(rules, values)
    assert found["layers.0.mlp.down.weight"] == pytest.approx(abs(wrong - 1), abs=0.03)


def test_a_missing_residual_scale_is_seen_in_a_narrow_model() -> None:
    model = ModelShape(**{**GPT, "layers": 2, "hidden": 8, "heads": 2})
    rules = rules_of(model)
    values = {
        name: drawn(rule._replace(deviation=math.sqrt(1 / 24)), name, 7) if rule.deviation else drawn(rule, name, 7)
        for name, rule in rules.items()
    }
    found = {name for name, away in departures(rules, values).items() if away > 0}
    assert {"layers.0.attention.out.weight", "layers.0.mlp.down.weight"} <= found
    assert not [name for name in found if not name.endswith(("out.weight", "down.weight"))]


def test_a_mean_that_is_not_zero_and_constants_that_are_others_are_seen() -> None:
    model = small().model
    rules, values = rules_of(model), first_weights(model, 3)
    values["embedding.tokens.weight"] += 0.3 * rules["embedding.tokens.weight"].deviation
    values["head.norm.weight"] += 1e-3
    values["head.norm.bias"][0] = 2.0
    found = {name: away for name, away in departures(rules, values).items() if away > 0}
    assert found["head.norm.weight"] == pytest.approx(1e-3) and found["head.norm.bias"] == 2.0
    assert found["embedding.tokens.weight"] == pytest.approx(0.3, abs=0.1) and len(found) == 3


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_stream_that_is_drawn_twice_is_seen_whatever_the_scale(scale: float) -> None:
    rules = {"a": Rule((6, 5), deviation=1.0, decays=True), "b": Rule((4, 9), deviation=scale, decays=True)}
    values = {"a": drawn(rules["a"], "a", 1), "b": drawn(rules["b"], "b", 1)}
    assert set(repetitions(rules, values).values()) == {0.0}
    values["b"] = drawn(rules["b"], "a", 1)
    found = repetitions(rules, values)
    assert found["a"] > 0.3 and found["b"] > 0.3  # torch draws the ends of tensors of other sizes anew
    rows = {"a": values["a"][:1].repeat(6, 1), "b": drawn(rules["b"], "b", 1)}
    assert repetitions(rules, rows) == {"a": 1.0, "b": 0.0}


def test_what_the_table_lacks_or_has_otherwise_is_named() -> None:
    model = small().model
    rules, table = rules_of(model), {p.name: p for p in parameters(model)}
    bias = table.pop("layers.1.mlp.up.bias")
    rules["head.norm.weight"] = rules["head.norm.weight"]._replace(decays=True)
    rules["layers.0.mlp.up.bias"] = Rule((3,))
    found = table_problems(rules, {**table, "layers.9.mlp.up.bias": bias})
    assert found == {
        "layers.1.mlp.up.bias": "missing in the engine's table",
        "layers.9.mlp.up.bias": "in the engine's table alone",
        "layers.0.mlp.up.bias": "shape [96] instead of [3]",
        "head.norm.weight": "weight decay False instead of True",
    }
