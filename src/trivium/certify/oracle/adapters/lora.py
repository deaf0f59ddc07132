"""LoRA (arXiv 2106.09685) and rsLoRA (arXiv 2312.03732): a product of low rank beside that with a frozen weight."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trivium.certify.oracle.terms import Chance, Rule, Settings, Tensor, apply


def rules(s: Settings, base: Rule, settings: Mapping[str, Any]) -> Iterator[tuple[str, Rule]]:
    """Yield the added parameters of a weight [..., outputs, inputs]."""
    r, inputs = settings.get("r", 16), base.shape[-1]
    yield "a", Rule((r, inputs), deviation=1 / math.sqrt(3 * inputs), decays=True, uniform=True)
    yield "b", Rule((*base.shape[:-1], r), decays=True)


def product(x: Tensor, w: Tensor, added: Mapping[str, Tensor], settings: Mapping[str, Any], chance: Chance) -> Tensor:
    """x [..., inputs] -> what the adapted layer computes without its bias, [..., outputs]."""
    return chance.times(w, x) + low_rank(x, added, settings, chance)


def low_rank(x: Tensor, added: Mapping[str, Tensor], settings: Mapping[str, Any], chance: Chance) -> Tensor:
    """Return what is added to the product with the frozen weight."""
    dropped = chance.drop(x, settings.get("dropout", 0.0))
    return scale(settings) * apply(added["b"], apply(added["a"], dropped))


def scale(settings: Mapping[str, Any]) -> float:
    """Return the factor of B A."""
    r: int = settings.get("r", 16)
    alpha: float = settings.get("alpha", 32.0)
    return alpha / math.sqrt(r) if settings.get("rslora", False) else alpha / r
