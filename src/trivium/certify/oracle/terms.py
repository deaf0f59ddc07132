"""Types that the parts of the oracle share: settings of a layer, rules of parameters, and the order of positions."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from trivium.plan.layers.form import LayerForm

Tensor = torch.Tensor
Weights = Mapping[str, Tensor]


class Order(NamedTuple):
    """The order of a batch's positions: their number within the document or sequence [B, S], which positions each
    attends to [B, S, S], and which targets count [B, S]."""

    numbers: Tensor
    sees: Tensor
    counts: Tensor


class Rule(NamedTuple):
    """A parameter's shape, unsplit and unpadded, its initial distribution normal(mean, deviation), and whether weight
    decay applies to it. uniform: the distribution is uniform with this mean and deviation instead. norms_rows: the
    parameter begins with the norms of the rows of the weight beside which an adapter adds it. by_expert: each matrix of
    the first dimension is drawn from a stream of its own."""

    shape: tuple[int, ...]
    mean: float = 0.0
    deviation: float = 0.0
    decays: bool = False
    uniform: bool = False
    norms_rows: bool = False
    by_expert: bool = False


class Chance(NamedTuple):
    """The random choices of a step for one linear layer. drop: (x [B, S, inputs], rate) -> x with elements zeroed.
    normal: standard normal numbers of a shape; None in evaluation. times: (w, x) -> x W^T, as the layer itself
    multiplies."""

    drop: Callable[[Tensor, float], Tensor]
    normal: Callable[[tuple[int, ...]], Tensor] | None
    times: Callable[[Tensor, Tensor], Tensor] = lambda w, x: apply(w, x)


class AdaptedWeights(dict[str, Tensor]):
    """Weights, some of which adapters change. products: by the name of a weight, what its layer computes of its
    inputs; of experts, by the name with the number of the expert behind it. scaled: how the others multiply, where it
    is not in fp64."""

    def __init__(
        self, weights: Weights, products: Mapping[str, Callable[[Tensor], Tensor]], scaled: Any = None
    ) -> None:
        super().__init__(weights)
        self.products, self.scaled = products, scaled


class Twin(NamedTuple):
    """A kind of part, written a second time. rules: its parameters by name, below `at`. compute: its result."""

    rules: Callable[..., Iterator[tuple[str, Rule]]]
    compute: Callable[..., Tensor]


class Settings(NamedTuple):
    """The settings of one layer, and the deviations of the model's initial weights."""

    form: LayerForm
    deviation: float
    residual_deviation: float

    def matrix(self, *shape: int, residual: bool = False) -> Rule:
        """The rule of a matrix; `residual` where it writes to the residual stream."""
        return Rule(shape, deviation=self.residual_deviation if residual else self.deviation, decays=True)


def deviations(hidden: int, layers: int, given: float | None) -> tuple[float, float]:
    """Return the standard deviations of the initial matrices: sqrt(1 / (3 hidden)) unless one is given (MT-NLG, section
    3.2), and that divided by sqrt(2 layers) for those that write to the residual stream (GPT-2, section 2.3;
    Megatron-LM)."""
    std = given if given is not None else math.sqrt(1 / (3 * hidden))
    return std, std / math.sqrt(2 * layers)


def linear(weights: Weights, x: Tensor, name: str) -> Tensor:
    """x W^T, and the bias where there is one; with an adapter, what that computes instead of x W^T."""
    y = _product(weights, f"{name}.weight")(x)
    return y + weights.get(f"{name}.bias", 0.0)


def linear_of_each(weights: Weights, x: Tensor, name: str) -> Tensor:
    """The same of the weight of each expert: x [..., experts, inputs] -> [..., experts, outputs]."""
    experts = range(x.shape[-2])
    return torch.stack([_product(weights, f"{name}.weight", e)(x[..., e, :]) for e in experts], x.dim() - 2)


def _product(weights: Weights, name: str, expert: int | None = None) -> Callable[[Tensor], Tensor]:
    """Return what a layer computes of its inputs, without a bias."""
    own = name if expert is None else f"{name}.{expert}"
    if isinstance(weights, AdaptedWeights) and own in weights.products:
        return weights.products[own]
    if isinstance(weights, AdaptedWeights) and weights.scaled is not None and expert is None:
        found: Callable[[Tensor], Tensor] = partial(weights.scaled.product, name, weights[name])
        return found
    return partial(apply, weights[name] if expert is None else weights[name][expert])


def apply(w: Tensor, x: Tensor) -> Tensor:
    """x [..., inputs] and w [..., outputs, inputs] -> x W^T; outputs have as many dimensions as those of w."""
    found: Tensor = torch.tensordot(x, w, dims=([-1], [-1]))
    return found
