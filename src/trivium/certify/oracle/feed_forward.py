"""Feed-forward halves of a layer, from their definitions. Legend: H hidden."""

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F

from trivium.certify.oracle.terms import Rule, Settings, Tensor, Twin, Weights, linear


def _gelu_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({"gelu_tanh": _gelu_tanh, "gelu": _gelu})


def _plain_rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    H = s.form.hidden
    columns = s.form.ffn if s.form.ffn is not None else 4 * H
    yield f"{at}.up.weight", s.matrix(columns, H)
    yield f"{at}.down.weight", s.matrix(H, columns, residual=True)
    if s.form.bias == "all":
        yield f"{at}.up.bias", Rule((columns,))
        yield f"{at}.down.bias", Rule((H,))


def _plain(weights: Weights, s: Settings, x: Tensor, at: str) -> Tensor:
    function = ACTIVATIONS[s.form.activation]
    return linear(weights, function(linear(weights, x, f"{at}.up")), f"{at}.down")


def _gated_rules(s: Settings, at: str) -> Iterator[tuple[str, Rule]]:
    H = s.form.hidden
    # 8/3 H, so that three matrices have as many elements as two of 4 H, rounded up to a multiple of 64.
    columns = s.form.ffn if s.form.ffn is not None else (8 * H + 191) // 192 * 64
    yield f"{at}.up.weight", s.matrix(2, columns, H)
    yield f"{at}.down.weight", s.matrix(H, columns, residual=True)


def _gated_by(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def compute(weights: Weights, s: Settings, x: Tensor, at: str) -> Tensor:
        gate, up = linear(weights, x, f"{at}.up").unbind(-2)
        return linear(weights, function(gate) * up, f"{at}.down")

    return compute


MLP_PLAIN = Twin(_plain_rules, _plain)
MLP_GATED = Twin(_gated_rules, _gated_by(F.silu))
MLP_GATED_GELU = Twin(_gated_rules, _gated_by(_gelu_tanh))
