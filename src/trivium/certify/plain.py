"""The model once more, in plain torch: one process, nothing split, nothing clever.

The oracle of the certificate. It shares the shape of the model and the function that makes a seed of a name with the
engine, and no code of `model`, `parallel` or `training`: a fault there cannot hide by being in both. Which parameters
there are and how they begin is in `rules`.

Legend: B sequences, S positions, H hidden, N heads, G key-value heads, D head width, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from trivium.certify.rules import drawn, rules_of
from trivium.plan.model_shape import ModelShape
from trivium.seeds import seed_for

Tensor = torch.Tensor
Weights = Mapping[str, Tensor]
Drop = Callable[[Tensor, str], Tensor]  # (x [B, S, H], site) -> x with elements zeroed


def first_weights(model: ModelShape, seed: int) -> dict[str, Tensor]:
    """Every parameter's initial values by name, unsplit and unpadded, in fp64 (drawn in fp32)."""
    return {name: drawn(rule, name, seed).double() for name, rule in rules_of(model).items()}


class Order(NamedTuple):
    """What a batch's positions may know: their number within the document or sequence [B, S], which positions each
    sees [B, S, S], and which targets count [B, S]."""

    numbers: Tensor
    sees: Tensor
    counts: Tensor


def order_of(model: ModelShape, tokens: Tensor) -> Order:
    """Every position sees itself and those before it; of its own document only, where documents are apart.

    A document ends with its end-of-text token, whose target, the start of another document, does not count.
    """
    B, S = tokens.shape
    sees = torch.ones(S, S, dtype=torch.bool).tril().expand(B, S, S)
    numbers = torch.arange(S).expand(B, S)
    if model.documents == "joined":
        return Order(numbers, sees, torch.ones(B, S, dtype=torch.bool))
    ends = tokens == model.end_of_text
    document = ends.long().cumsum(1) - ends.long()
    sees = sees & (document[:, :, None] == document[:, None, :])
    return Order(sees.sum(-1) - 1, sees, ~ends)


def seen_in(model: ModelShape, layer: int, sees: Tensor) -> Tensor:
    """Of what positions see [B, S, S], what they do in a layer: the nearest `window` of it, where the layer has one."""
    after_first = layer - model.window_from
    looks_back = model.full_every is not None and after_first % model.full_every == model.full_every - 1
    if model.window is None or after_first < 0 or looks_back:
        return sees
    return sees.triu(1 - model.window)


class Losses(NamedTuple):
    """Means over the batch's tokens that count: cross-entropy in nats, and what training adds to it; 0 where none
    does."""

    cross_entropy: Tensor
    z_loss: Tensor


def losses_of(weights: Weights, model: ModelShape, tokens: Tensor, targets: Tensor, drop: Drop) -> Losses:
    """Of tokens and targets [B, S]."""
    order = order_of(model, tokens)
    x = weights["embedding.tokens.weight"][tokens]
    if model.family == "gpt":
        x = x + weights["embedding.positions.weight"][order.numbers]
    x = drop(x, "embedding")
    for n in range(model.layers):
        at = f"layers.{n}"
        here = order._replace(sees=seen_in(model, n, order.sees))
        for name, half in (("attention", partial(_attention, order=here)), ("mlp", _mlp)):
            norm = partial(_norm, weights, model, name=f"{at}.{name}.norm")
            if model.norm_position == "before":
                y = half(weights, model, norm(x), at=at)
            else:
                y = norm(half(weights, model, x, at=at))
            x = x + drop(y, f"{at}.{name}")
    table = weights["head.weight" if model.head == "untied" else "embedding.tokens.weight"]
    logits = _norm(weights, model, x, "head.norm") @ table.T
    logits = logits[order.counts]
    count = max(1, len(logits))
    z_loss = model.z_loss * logits.logsumexp(-1).square().sum() / count
    return Losses(F.cross_entropy(logits, targets[order.counts], reduction="sum") / count, z_loss)


def dropping(
    model: ModelShape, seed: int, step: int, samples: range, streams: list[int] | None = None
) -> Drop:
    """Dropout of a step: each sample's mask at each site is a function of their names alone. streams: gets the seed of
    every mask."""
    rate = model.dropout

    def mask(site: str, sample: int, shape: torch.Size) -> Tensor:
        stream = seed_for(seed, "dropout", site, step, sample)
        if streams is not None:
            streams.append(stream)
        generator = torch.Generator().manual_seed(stream)
        return torch.rand(shape, generator=generator, dtype=torch.float32) >= rate

    def drop(x: Tensor, site: str) -> Tensor:
        if rate == 0:
            return x
        return x * torch.stack([mask(site, n, x.shape[1:]) for n in samples]) / (1 - rate)

    return drop


def keep_all(x: Tensor, site: str) -> Tensor:
    """No dropout."""
    return x


def _norm(weights: Weights, model: ModelShape, x: Tensor, name: str) -> Tensor:
    if model.family == "gpt":
        x = x - x.mean(-1, keepdim=True)
    return _rms(x, model) * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0.0)


def _rms(x: Tensor, model: ModelShape) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + model.norm_epsilon)


def _normed_heads(weights: Weights, model: ModelShape, x: Tensor, name: str) -> Tensor:
    """x [B, S, G, n, D]: each head by itself, or one row of all of them."""
    rows = x if model.qk_norm == "each_head" else x.flatten(2)
    return (_rms(rows, model) * weights[f"{name}.weight"]).view(x.shape)


def _linear(weights: Weights, x: Tensor, name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def _attention(weights: Weights, model: ModelShape, x: Tensor, order: Order, at: str) -> Tensor:
    B, S, _ = x.shape
    N, G, D = model.heads, model.kv_heads or model.heads, model.head_width or model.hidden // model.heads
    rows = _linear(weights, x, f"{at}.attention.qkv")
    # The rows of a group: its N/G queries, its key, its value.
    q, k, v = torch.split(rows.view(B, S, G, N // G + 2, D), [N // G, 1, 1], dim=3)
    if model.qk_norm != "none":
        q, k = (
            _normed_heads(weights, model, x, f"{at}.attention.{n}_norm")
            for x, n in ((q, "query"), (k, "key"))
        )
    if model.family == "llama":
        speeds, length = _speeds(model, D), _length(model)
        q, k = (_rotate(rows, order.numbers, speeds) * length for rows in (q, k))
    scores = torch.einsum("bsgnd,btgd->bgnst", q, k.squeeze(3)) / math.sqrt(D)
    shares = scores.masked_fill(~order.sees[:, None, None], float("-inf")).softmax(-1)
    y = torch.einsum("bgnst,btgd->bsgnd", shares, v.squeeze(3))
    return _linear(weights, y.reshape(B, S, N * D), f"{at}.attention.out")


def _rotate(x: Tensor, numbers: Tensor, speeds: list[float]) -> Tensor:
    """x [B, S, G, n, D] as complex numbers (d, d + D/2), turned by position x the speed of the pair."""
    angles = numbers.double()[..., None] * torch.tensor(speeds, dtype=torch.float64)
    a, b = x.chunk(2, dim=-1)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)[:, :, None, None]
    return torch.cat([turned.real, turned.imag], dim=-1)


def _speeds(model: ModelShape, D: int) -> list[float]:
    """Radians for each position, of every pair of columns: base^(-2d/D), and less where they are slowed."""
    return [_slowed(model, D, d) for d in range(D // 2)]


def _slowed(model: ModelShape, D: int, d: int) -> float:
    speed, given = math.exp(-2 * d / D * math.log(model.rope_base)), model.rope_scaling
    if given is None:
        return speed
    slow = speed / given.factor
    if given.kind == "linear":
        return slow
    wave = 2 * math.pi / speed  # positions for one turn
    few, many, span = given.slow or 0, given.fast or 0, given.original or 0
    if given.kind == "llama3":  # by Llama 3.1's reference code, in wave lengths
        if wave < span / many:
            return speed
        if wave > span / few:
            return slow
        smooth = (span / wave - few) / (many - few)
        return (1 - smooth) * slow + smooth * speed
    # YaRN, arXiv 2309.00071: the bounds are pairs, found by solving span / wave = turns for d.
    low, high = (
        D * math.log(span / (n * 2 * math.pi)) / (2 * math.log(model.rope_base)) for n in (many, few)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), D - 1)
    ramp = min(max((d - low) / ((high - low) or 0.001), 0), 1)
    return (1 - ramp) * speed + ramp * slow


def _length(model: ModelShape) -> float:
    """How much longer queries and keys become when they are turned."""
    given = model.rope_scaling
    if given is None or given.kind != "yarn":
        return 1.0
    if given.attention is not None:
        return given.attention
    return 1.0 if given.factor <= 1 else 0.1 * math.log(given.factor) + 1


def _mlp(weights: Weights, model: ModelShape, x: Tensor, at: str) -> Tensor:
    if model.family == "gpt":
        y = F.gelu(_linear(weights, x, f"{at}.mlp.up"), approximate="tanh")
    else:
        gate, up = weights[f"{at}.mlp.up.weight"]
        y = F.silu(x @ gate.T) * (x @ up.T)
    return _linear(weights, y, f"{at}.mlp.down")
