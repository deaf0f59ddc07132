"""The module of a described layer. The tables of kinds are here and nowhere else."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from trivium.model.layers.attention_softmax import AttentionSoftmax
from trivium.model.layers.half import Around, Half
from trivium.model.layers.mlp_gated import MlpGated
from trivium.model.layers.mlp_plain import MlpPlain
from trivium.model.layers.wiring import Sequential, Wiring
from trivium.model.layers.wiring_side_by_side import SideBySide
from trivium.plan.layers import attention_softmax, mlp_gated, mlp_plain, wiring, wiring_side_by_side
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.part import Part

HALVES: Mapping[type[Part], Callable[[Any, Around], Half]] = MappingProxyType(
    {attention_softmax.AttentionSoftmax: AttentionSoftmax, mlp_plain.MlpPlain: MlpPlain, mlp_gated.MlpGated: MlpGated}
)
WIRINGS: Mapping[type[Part], type[Wiring]] = MappingProxyType(
    {wiring.Sequential: Sequential, wiring_side_by_side.SideBySide: SideBySide}
)


def module_of(layer: Layer, around: Around) -> Wiring:
    """The module of a layer, on this rank."""
    attention, mlp = (HALVES[type(half)](half, around) for half in layer.halves.values())
    return WIRINGS[type(layer.wiring)](layer, attention, mlp, around)
