"""A model from its settings: which settings each layer has, and which twin computes each of its parts."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch

from trivium.certify.oracle.attention_latent import ATTENTION_LATENT
from trivium.certify.oracle.attention_softmax import ATTENTION_SOFTMAX
from trivium.certify.oracle.feed_forward import MLP_GATED, MLP_GATED_GELU, MLP_PLAIN
from trivium.certify.oracle.float8 import Scaled
from trivium.certify.oracle.mlp_experts import MLP_EXPERTS
from trivium.certify.oracle.norms import LAYER_NORM, RMS_NORM, RMS_NORM_OFFSET
from trivium.certify.oracle.terms import (
    AdaptedWeights,
    Chance,
    Order,
    Rule,
    Settings,
    Tensor,
    Twin,
    Weights,
    deviations,
)
from trivium.certify.oracle.wiring import SANDWICH, SEQUENTIAL, SIDE_BY_SIDE, Drop
from trivium.plan.adapters import AdapterGroup
from trivium.plan.model_shape import ModelShape

LATENT = ("query", "query_down", "query_up", "kv_down", "kv_up")  # linear layers of latent attention
FEED_FORWARD = ("up", "down", "experts.up", "experts.down", "shared.up", "shared.down", "shared_gate")
ATTENTIONS: Mapping[str, Twin] = MappingProxyType({"softmax": ATTENTION_SOFTMAX, "latent": ATTENTION_LATENT})
NORMS: Mapping[str, Twin] = MappingProxyType(
    {"layer_norm": LAYER_NORM, "rms_norm": RMS_NORM, "rms_norm_offset": RMS_NORM_OFFSET}
)
FEED_FORWARDS: Mapping[str, Twin] = MappingProxyType(
    {"plain": MLP_PLAIN, "gated": MLP_GATED, "gated_gelu": MLP_GATED_GELU, "experts": MLP_EXPERTS}
)
WIRINGS: Mapping[str, Twin] = MappingProxyType(
    {"sequential": SEQUENTIAL, "side_by_side": SIDE_BY_SIDE, "sandwich": SANDWICH}
)


def settings_of(model: ModelShape, layer: int) -> Settings:
    """The settings of a layer: the model's own, and those of its run in `first` or in the repeated `pattern`."""
    number, changes = layer, {}
    for run in model.first:
        if 0 <= number < run.times:
            changes = run.settings
        number -= run.times
    if number >= 0 and model.pattern:
        number %= sum(run.times for run in model.pattern)
        for run in model.pattern:
            if 0 <= number < run.times:
                changes = run.settings
            number -= run.times
    std, residual = deviations(model.hidden, model.layers, model.init_std)
    return Settings(model.model_copy(update=changes), std, residual)


def rules_of(model: ModelShape) -> dict[str, Rule]:
    """The rule of each parameter, by its name."""
    own = dict([*_ends(model), *(row for n in range(model.layers) for row in _layer(model, n))])
    return {**own, **dict(_added(model, own))}


def _added(model: ModelShape, rules: Mapping[str, Rule]) -> Iterator[tuple[str, Rule]]:
    for name, group in adapted_weights(model, rules).items():
        s, base = settings_of(model, int(name.split(".")[1])), rules[name]
        each = base.shape[:1] if ".experts." in name else ()  # every expert has an adapter of its own
        for part, rule in twin_of(group).rules(s, base._replace(shape=base.shape[len(each) :]), group.settings):
            yield f"{name.removesuffix('.weight')}.adapter.{part}", rule._replace(shape=(*each, *rule.shape))


def adapted_weights(model: ModelShape, names: Iterable[str]) -> dict[str, AdapterGroup]:
    """Return the weights of linear layers that have an adapter, by name, each with the first group that matches."""
    ends = ("attention.qkv", *(f"attention.{n}" for n in LATENT), "attention.out", *(f"mlp.{n}" for n in FEED_FORWARD))
    linear = [name.removesuffix(".weight") for name in names if name.endswith(tuple(f"{end}.weight" for end in ends))]
    found = {name: [g for g in model.adapters if re.fullmatch(fnmatch.translate(g.match), name)] for name in linear}
    return {f"{name}.weight": groups[0] for name, groups in found.items() if groups}


def with_adapters(
    weights: Weights, model: ModelShape, chance_of: Callable[..., Chance], scaled: Scaled | None = None
) -> Weights:
    """Return the weights with what the adapted linear layers compute. chance_of: the random choices by their site, and
    the number of an expert. scaled: how linear layers multiply; None: in fp64."""
    products = {}
    for name, group in adapted_weights(model, weights).items():
        at = f"{name.removesuffix('.weight')}.adapter"
        added = {key.removeprefix(f"{at}."): w for key, w in weights.items() if key.startswith(f"{at}.")}
        for expert in experts_of(name, weights):
            chance = chance_of(at, *expert)
            if scaled is not None:
                chance = chance._replace(times=partial(scaled.of_rows if expert else scaled.product, name))
            own = {key: each[expert] for key, each in added.items()}
            product = partial(twin_of(group).product, settings=group.settings, chance=chance)
            products[".".join([name, *map(str, expert)])] = partial(product, w=weights[name][expert], added=own)
    return AdaptedWeights(weights, products, scaled)


def remembered(weights: Weights, model: ModelShape, gradients: Weights) -> dict[str, Tensor]:
    """Return the parameters that adapters make of the weights and gradients of a step."""
    found: dict[str, Tensor] = {}
    for name, group in adapted_weights(model, weights).items():
        twin, at = twin_of(group), f"{name.removesuffix('.weight')}.adapter."
        if hasattr(twin, "remembered"):
            here, there = (
                {k.removeprefix(at): x for k, x in all_.items() if k.startswith(at)} for all_ in (weights, gradients)
            )
            for expert in experts_of(name, weights):
                own, gradient = ({k: x[expert] for k, x in all_.items()} for all_ in (here, there))
                new = twin.remembered(weights[name][expert], own, gradient, group.settings)
                for part, values in new.items():
                    found.setdefault(f"{at}{part}", torch.zeros_like(here[part]))[expert] = values
    return found


def experts_of(name: str, weights: Weights) -> list[tuple[int, ...]]:
    """Return the indices of the matrices in a weight that adapters see one by one: one for each expert, and for other
    layers that of the whole weight."""
    return [(e,) for e in range(len(weights[name]))] if ".experts." in name else [()]


def twin_of(group: AdapterGroup) -> Any:
    """Return the second implementation of a kind of adapter: its `rules` and its `product`."""
    return import_module(f"trivium.certify.oracle.adapters.{group.kind}")


def _ends(model: ModelShape) -> Iterator[tuple[str, Rule]]:
    s, H, V = settings_of(model, 0)._replace(form=model), model.hidden, model.vocabulary
    yield "embedding.tokens.weight", s.matrix(V, H)
    if model.positions == "learned":
        yield "embedding.positions.weight", s.matrix(model.sequence, H)
    yield from NORMS[model.norm].rules(s, "head.norm")
    if model.head == "untied":
        yield "head.weight", s.matrix(V, H)


def _layer(model: ModelShape, n: int) -> Iterator[tuple[str, Rule]]:
    s, at = settings_of(model, n), f"layers.{n}"
    norm = NORMS[s.form.norm]
    yield from WIRINGS[s.form.wiring].rules(s, at, norm)
    yield from ATTENTIONS[s.form.attention].rules(s, f"{at}.attention")
    yield from FEED_FORWARDS[s.form.feed_forward].rules(s, f"{at}.mlp")


def layer(
    weights: Weights,
    model: ModelShape,
    n: int,
    x: Tensor,
    order: Order,
    drop: Drop,
    heard: dict[int, Tensor] | None = None,
) -> Tensor:
    """x [B, S, H] behind layer n. heard: gets what its feed-forward half reads."""
    s, at = settings_of(model, n), f"layers.{n}"

    def feed_forward(y: Tensor) -> Tensor:
        if heard is not None:
            heard[n] = y
        return FEED_FORWARDS[s.form.feed_forward].compute(weights, s, y, f"{at}.mlp")

    halves = {
        "attention": lambda y: ATTENTIONS[s.form.attention].compute(weights, s, y, f"{at}.attention", order),
        "mlp": feed_forward,
    }
    norm = partial(NORMS[s.form.norm].compute, weights, s)
    return WIRINGS[s.form.wiring].compute(
        s, x, halves, lambda y, name: norm(y, f"{at}.{name}"), lambda y, name: drop(y, f"{at}.{name}")
    )


def embedded(weights: Weights, model: ModelShape, tokens: Tensor, order: Order) -> Tensor:
    """Return the vectors of tokens [B, S], with learned positions where the model has them: [B, S, H]."""
    x = weights["embedding.tokens.weight"][tokens]
    x = x + weights["embedding.positions.weight"][order.numbers] if model.positions == "learned" else x
    return x * model.embedding_scale


def logits_of(weights: Weights, model: ModelShape, x: Tensor) -> Tensor:
    """x [B, S, H] behind the last layer -> logits [B, S, V]."""
    table = weights["head.weight" if model.head == "untied" else "embedding.tokens.weight"]
    s = settings_of(model, 0)._replace(form=model)
    logits = NORMS[model.norm].compute(weights, s, x, "head.norm") @ table.T * model.logits_scale
    return logits if model.logits_cap is None else model.logits_cap * torch.tanh(logits / model.logits_cap)
