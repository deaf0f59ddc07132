"""The parameters of a model by the rules of the papers: names, shapes, initial distributions, and weight decay.

This is a second account of what `plan/parameters.py` and `model/initialise.py` say, and reads neither. The rules:
every matrix and table is drawn from normal(0, std), with std = sqrt(1 / (3 hidden)) unless it is given (MT-NLG, section
3.2). The matrices that write to the residual stream are divided by sqrt(2 layers) (GPT-2, section 2.3; Megatron-LM).
Norms begin with 1 and biases with 0. Neither has weight decay.

Legend: H hidden, N heads, G key-value heads, D head width, F feed-forward width, V vocabulary, S positions.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch

from trivium.plan.layers.part import Parameter
from trivium.plan.model_shape import ModelShape
from trivium.seeds import seed_for

Tensor = torch.Tensor

# Standard errors that a sample's mean or deviation may be off: beyond six, one in 500 million is.
STANDARD_ERRORS = 6.0
# Draws that follow one another in a stream, and how finely they are compared. Two streams have three such draws in
# common by chance once in 10^13 pairs.
RUN, GRID = 3, 1e-5


class Rule(NamedTuple):
    """A parameter's shape, unsplit and unpadded, its initial distribution normal(mean, deviation), and whether weight
    decay applies to it."""

    shape: tuple[int, ...]
    mean: float = 0.0
    deviation: float = 0.0
    decays: bool = False


def rules_of(model: ModelShape) -> dict[str, Rule]:
    """The rule of each parameter, by its name."""
    return dict([*_ends(model), *(row for n in range(model.layers) for row in _layer(model, f"layers.{n}"))])


def drawn(rule: Rule, name: str, seed: int) -> Tensor:
    """The initial values of a parameter in fp32, from the stream that has its name."""
    if rule.deviation == 0:
        return torch.full(rule.shape, rule.mean)
    generator = torch.Generator().manual_seed(seed_for(seed, "initial", name))
    return torch.randn(rule.shape, generator=generator) * rule.deviation


def table_problems(rules: Mapping[str, Rule], table: Mapping[str, Parameter]) -> dict[str, str]:
    """By name, how the engine's table of parameters differs from the rules."""
    found = {name: "missing in the engine's table" for name in rules if name not in table}
    found |= {name: "in the engine's table alone" for name in table if name not in rules}
    for name, rule in rules.items():
        row = table.get(name)
        if row is not None and row.shape != rule.shape:
            found[name] = f"shape {list(row.shape)} instead of {list(rule.shape)}"
        elif row is not None and row.decay != rule.decays:
            found[name] = f"weight decay {row.decay} instead of {rule.decays}"
    return found


def departures(rules: Mapping[str, Rule], values: Mapping[str, Tensor]) -> dict[str, float]:
    """By parameter, how far its initial values are from its distribution, relative to the deviation; 0 where no more
    than chance allows. Those of one rule in all layers are also taken together, under the first one's name: a few
    values tell little."""
    kinds: dict[str, list[str]] = {}
    for name in rules:
        kinds.setdefault(_without_number(name), []).append(name)
    found = {name: _departure(rules[name], values[name].flatten()) for name in rules}
    for names in kinds.values():
        together = torch.cat([values[name].flatten() for name in names])
        found[names[0]] = max(found[names[0]], _departure(rules[names[0]], together))
    return found


def repetitions(rules: Mapping[str, Rule], values: Mapping[str, Tensor]) -> dict[str, float]:
    """By parameter, the share of its draws that stand in it or in another one as well, in the same order."""
    names = [name for name, rule in rules.items() if rule.deviation > 0 and values[name].numel() >= RUN]
    runs = [_runs(values[name].flatten() / rules[name].deviation) for name in names]
    _, number, counts = np.unique(torch.cat(runs).numpy(), axis=0, return_inverse=True, return_counts=True)
    ends = np.cumsum([len(each) for each in runs])
    repeated = np.split((counts > 1)[number.flatten()], ends[:-1])
    return {name: float(share.mean()) for name, share in zip(names, repeated, strict=True)}


def _ends(model: ModelShape) -> Iterator[tuple[str, Rule]]:
    H, V, S = model.hidden, model.vocabulary, model.sequence
    yield "embedding.tokens.weight", _matrix(model, V, H)
    if model.family == "gpt":
        yield "embedding.positions.weight", _matrix(model, S, H)
    yield from _norm(model, "head.norm")
    if model.head == "untied":
        yield "head.weight", _matrix(model, V, H)


def _layer(model: ModelShape, at: str) -> Iterator[tuple[str, Rule]]:
    H, N, G = model.hidden, model.heads, model.kv_heads or model.heads
    D, F = model.head_width or H // N, _feed_forward_width(model)
    gpt = model.family == "gpt"
    yield from _norm(model, f"{at}.attention.norm")
    yield from _norm(model, f"{at}.mlp.norm")
    yield f"{at}.attention.qkv.weight", _matrix(model, (N + 2 * G) * D, H)
    yield f"{at}.attention.out.weight", _matrix(model, H, N * D, residual=True)
    yield f"{at}.mlp.up.weight", _matrix(model, F, H) if gpt else _matrix(model, 2, F, H)
    yield f"{at}.mlp.down.weight", _matrix(model, H, F, residual=True)
    biases = {"attention.qkv": (N + 2 * G) * D, "attention.out": H, "mlp.up": F, "mlp.down": H}
    for name, columns in biases.items():
        if gpt or (name == "attention.qkv" and model.qkv_bias):
            yield f"{at}.{name}.bias", Rule((columns,))
    if model.qk_norm != "none":
        queries, keys = (D, D) if model.qk_norm == "each_head" else (N * D, G * D)
        yield f"{at}.attention.query_norm.weight", Rule((queries,), mean=1.0)
        yield f"{at}.attention.key_norm.weight", Rule((keys,), mean=1.0)


def _norm(model: ModelShape, name: str) -> Iterator[tuple[str, Rule]]:
    yield f"{name}.weight", Rule((model.hidden,), mean=1.0)
    if model.family == "gpt":
        yield f"{name}.bias", Rule((model.hidden,))


def _matrix(model: ModelShape, *shape: int, residual: bool = False) -> Rule:
    std = model.init_std if model.init_std is not None else math.sqrt(1 / (3 * model.hidden))
    return Rule(shape, deviation=std / math.sqrt(2 * model.layers) if residual else std, decays=True)


def _feed_forward_width(model: ModelShape) -> int:
    """4 H in GPT; 8/3 H in Llama, so that three matrices have as many elements, rounded up to a multiple of 64."""
    if model.ffn is not None:
        return model.ffn
    return 4 * model.hidden if model.family == "gpt" else (8 * model.hidden + 191) // 192 * 64


def _departure(rule: Rule, x: Tensor) -> float:
    if rule.deviation == 0:
        return float((x - rule.mean).abs().max())
    x, n = (x.double() - rule.mean) / rule.deviation, len(x)
    mean, square = float(x.mean()), float(x.square().mean())
    # Wilson and Hilferty (1931): the cube root of chi-squared / n is close to normal(1 - 2 / 9n, 2 / 9n).
    errors = (square ** (1 / 3) - 1 + 2 / (9 * n)) / math.sqrt(2 / (9 * n))
    off_mean = abs(mean) if abs(mean) * math.sqrt(n) > STANDARD_ERRORS else 0.0
    off_deviation = abs(math.sqrt(square) - 1) if abs(errors) > STANDARD_ERRORS else 0.0
    return max(off_mean, off_deviation)


def _runs(draws: Tensor) -> Tensor:
    """[draws - RUN + 1, RUN]: each draw with those after it, on the grid."""
    return (draws.double() / GRID).round().long().unfold(0, RUN, 1)


def _without_number(name: str) -> str:
    return ".".join("N" if part.isdigit() else part for part in name.split("."))
