"""A product of low rank beside a frozen weight (LoRA, arXiv 2106.09685): the sum of both is one weight."""

from collections.abc import Iterator, Mapping
from typing import Any

from trivium.certify.oracle.terms import Rule, Settings, Tensor


def rules(s: Settings, base: Rule, settings: Mapping[str, Any]) -> Iterator[tuple[str, Rule]]:
    """Yield the added parameters of a weight [..., outputs, inputs]."""
    rank = settings.get("rank", 8)
    yield "a", s.matrix(rank, base.shape[-1])
    yield "b", Rule((*base.shape[:-1], rank), decays=True)


def weight(w: Tensor, added: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Tensor:
    """Return the weight with which the adapted layer multiplies."""
    scale: float = settings.get("scale", 1.0)
    return w + scale * (added["b"] @ added["a"])
