"""A second implementation of the model in plain torch, for one process: the oracle of the certificate.

It shares the shape of the model and the function that derives a seed from a name with the engine, but no code of
`model`, `parallel` or `training`, so that a fault cannot be in both. `rules` lists the parameters and their initial
values.

Legend: B sequences, S positions, H hidden, N heads, G key-value heads, D head width, V vocabulary.
"""

import pkgutil
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from trivium.certify.oracle import losses
from trivium.certify.oracle.float8 import Scaled
from trivium.certify.oracle.layers import embedded, layer, logits_of, rules_of, with_adapters
from trivium.certify.oracle.terms import Chance, Order, Tensor, Weights
from trivium.certify.rules import drawn
from trivium.plan.model_shape import ModelShape
from trivium.seeds import seed_for


class Drop(Protocol):
    """Dropout of a step."""

    def __call__(self, x: Tensor, site: str, rate: float | None = None) -> Tensor:
        """Return x [B, S, H] with elements zeroed. rate: by default the model's."""


def first_weights(model: ModelShape, seed: int) -> dict[str, Tensor]:
    """Return the initial values of every parameter by name, unsplit and unpadded, in fp64 (drawn in fp32)."""
    rules = rules_of(model)
    found = {name: drawn(rule, name, seed) for name, rule in rules.items()}
    for name, rule in rules.items():
        if rule.norms_rows:
            found[name] = found[f"{name.partition('.adapter.')[0]}.weight"].square().sum(-1).sqrt()
    return {name: values.double() for name, values in found.items()}


def order_of(model: ModelShape, tokens: Tensor) -> Order:
    """Return the order of positions of tokens [B, S]. Every position attends to itself and to those before it, with
    separate documents only within its own.

    A document ends with its end-of-text token, whose target begins another document and does not count.
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


def losses_of(
    weights: Weights,
    model: ModelShape,
    text: Tensor,
    counts: Tensor,
    drop: Drop,
    normal: Callable[[tuple[str | int, ...], tuple[int, ...]], Tensor] | None = None,
    heard: dict[int, Tensor] | None = None,
    scaled: Scaled | None = None,
) -> dict[str, Tensor]:
    """Return the losses of a batch by name, as means over its targets: the cross-entropy in nats, called "loss", and
    what training adds to it. Where no target counts they are 0.

    text: token ids [B, S + 1]. counts: how much each of them counts as a target. normal: the noise of a step; None in
    evaluation. heard: gets what each layer's feed-forward half reads, [B, S, H]. scaled: how linear layers multiply;
    None: in fp64.
    """
    tokens, targets = text[:, :-1], text[:, 1:]

    def chance_of(site: str, *expert: int) -> Chance:
        noisy = None if normal is None else partial(normal, (site, *expert))
        return Chance(lambda x, rate: drop(x, site, rate), noisy)

    weights = with_adapters(weights, model, chance_of, scaled)
    order = order_of(model, tokens)
    x = drop(embedded(weights, model, tokens, order), "embedding")
    for n in range(model.layers):
        x = layer(weights, model, n, x, order, drop, heard)
    logits = logits_of(weights, model, x)
    share = counts[:, 1:].double() * order.counts
    share = share / share.sum() if share.any() else share
    nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    others = {name: loss_of(model, logits) for name, loss_of in _added().items()}
    return {
        "loss": share.flatten() @ nats,
        **{name: (share * loss).sum() for name, loss in others.items() if loss is not None},
    }


@cache
def _added() -> dict[str, Callable[[ModelShape, Tensor], Tensor | None]]:
    """Return the functions of the losses that training may add, by name; each returns the loss of each token [B, S]."""
    names = sorted(found.name for found in pkgutil.iter_modules(losses.__path__))
    modules: dict[str, Any] = {name: import_module(f"{losses.__name__}.{name}") for name in names}
    return {name: module.loss_of for name, module in modules.items()}


def dropping(model: ModelShape, seed: int, step: int, samples: range, streams: list[int] | None = None) -> Drop:
    """Return the dropout of a step: the mask of a sample at a site depends on their names alone. streams: gets the seed
    of every mask."""

    def mask(site: str, rate: float, sample: int, shape: torch.Size) -> Tensor:
        stream = seed_for(seed, "dropout", site, step, sample)
        if streams is not None:
            streams.append(stream)
        generator = torch.Generator().manual_seed(stream)
        return torch.rand(shape, generator=generator, dtype=torch.float32) >= rate

    def drop(x: Tensor, site: str, rate: float | None = None) -> Tensor:
        rate = model.dropout if rate is None else rate
        if rate == 0:
            return x
        return x * torch.stack([mask(site, rate, n, x.shape[1:]) for n in samples]) / (1 - rate)

    return drop


def noise(seed: int, step: int) -> Callable[[tuple[str | int, ...], tuple[int, ...]], Tensor]:
    """Return the noise of a step: standard normal numbers of a shape, by the name of their site, and of an expert by
    its number behind that."""

    def normal(at: tuple[str | int, ...], shape: tuple[int, ...]) -> Tensor:
        site, *expert = at
        generator = torch.Generator().manual_seed(seed_for(seed, "noise", site, step, *expert))
        return torch.randn(shape, generator=generator, dtype=torch.float32).double()

    return normal


def keep_all(x: Tensor, site: str, rate: float | None = None) -> Tensor:
    """Return x unchanged, without dropout."""
    return x
