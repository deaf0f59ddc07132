"""LoRA-GGPO (arXiv 2502.14538 v1), as kohya-ss/sd-scripts#1974: LoRA with noise on the frozen weight in training."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trivium.certify.oracle.adapters import lora
from trivium.certify.oracle.terms import Chance, Rule, Settings, Tensor

SIGMA, BETA = 0.03, 0.01


def rules(s: Settings, base: Rule, settings: Mapping[str, Any]) -> Iterator[tuple[str, Rule]]:
    """Yield the added parameters of a weight [..., outputs, inputs]."""
    yield from lora.rules(s, base, settings)
    yield "deviation", Rule(base.shape[:-1])


def product(x: Tensor, w: Tensor, added: Mapping[str, Tensor], settings: Mapping[str, Any], chance: Chance) -> Tensor:
    """x [..., inputs] -> what the adapted layer computes without its bias, [..., outputs]."""
    if chance.normal is not None:
        w = w + added["deviation"][..., None] * chance.normal(w.shape)
    return chance.times(w, x) + lora.low_rank(x, added, settings, chance)


def remembered(
    w: Tensor, added: Mapping[str, Tensor], gradients: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the parameters that follow from a step. gradients: after clipping."""
    scale = lora.scale(settings)
    rows = (w + scale * added["b"] @ added["a"]).flatten(0, -2)
    change = scale * (gradients["b"] @ added["a"] + added["b"] @ gradients["a"]).flatten(0, -2)
    sigma, beta = settings.get("sigma", SIGMA), settings.get("beta", BETA)
    noise = sigma * rows.norm(dim=1) + beta * change.norm(dim=1) ** 2
    return {"deviation": (noise / math.sqrt(len(rows))).view(w.shape[:-1])}
