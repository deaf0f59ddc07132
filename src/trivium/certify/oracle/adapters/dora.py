"""DoRA (arXiv 2402.09353): rows of W + s B A, divided by their norms and multiplied by a magnitude."""

from collections.abc import Iterator, Mapping
from typing import Any

from trivium.certify.oracle.adapters import lora
from trivium.certify.oracle.terms import Chance, Rule, Settings, Tensor


def rules(s: Settings, base: Rule, settings: Mapping[str, Any]) -> Iterator[tuple[str, Rule]]:
    """Yield the added parameters of a weight [..., outputs, inputs]."""
    yield from lora.rules(s, base, settings)
    yield "m", Rule(base.shape[:-1], norms_rows=True)


def product(x: Tensor, w: Tensor, added: Mapping[str, Tensor], settings: Mapping[str, Any], chance: Chance) -> Tensor:
    """x [..., inputs] -> what the adapted layer computes without its bias, [..., outputs]."""
    whole = w + lora.scale(settings) * (added["b"] @ added["a"])
    norm = whole.detach().pow(2).sum(-1).sqrt()
    return added["m"] / norm * (chance.times(w, x) + lora.low_rank(x, added, settings, chance))
