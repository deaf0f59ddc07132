"""The connection of a layer's norms, attention and feed-forward half to the residual stream.

Legend: B sequences, S positions, H hidden.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from trivium.kernels.recompute import recomputed
from trivium.model.inputs import Inputs
from trivium.model.layers.half import Around, Half
from trivium.model.layers.kinds import kind_of
from trivium.model.layers.linear import Added, Linear
from trivium.plan.layers.layer import Layer
from trivium.plan.layers.wiring import Sequential as Described


class Wiring(nn.Module, ABC):
    """A layer. Its halves have the norms as submodules, so that parameters are named after the half."""

    def __init__(self, layer: Layer, attention: Half, mlp: Half, around: Around) -> None:
        super().__init__()
        self.region, self.mode = around.region, around.recompute.mode_of(around.layer)
        self.rate = layer.wiring.rate
        self.attention, self.mlp = attention, mlp
        for name in layer.halves:
            half = getattr(self, name)
            # Made once: in a compiled layer, a name made from its number would make each layer a graph of its own.
            half.site = f"layers.{around.layer}.{name}"
            for norm in layer.wiring.norms_of(name):
                setattr(half, norm, kind_of(layer.norm)(layer.norm, around.operations))
        self._of_training = self._forward

    def compile_training(self, options: dict[str, Any] | None) -> None:
        """Let torch.compile fuse what a training step computes; hooks, and recomputing of layers, stay outside."""
        for half in (self.attention, self.mlp):
            if not half.traced:
                half.forward = torch.compiler.disable(half.forward)  # pyrefly: ignore[method-assign]
        self._of_training = torch.compile(self._forward, dynamic=False, options=options)

    def forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H]."""
        if not self.training:
            return self._forward(x, inputs)
        if self.mode == "layer":
            return recomputed(self._of_training, x, inputs)
        return self._of_training(x, inputs)

    @abstractmethod
    def _forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """[S here, B, H] -> [S here, B, H]. It calls the halves itself: a product that torch.compile does not look into
        ends the graph of the function that calls it. So bias, sum and norm, which are between two products, are one
        graph, forward and backward."""


class Sequential(Wiring):
    """x + attention(x), then x + feed_forward(x), each with a norm before or after."""

    def __init__(self, layer: Layer, attention: Half, mlp: Half, around: Around) -> None:
        super().__init__(layer, attention, mlp, around)
        wiring = layer.wiring
        assert isinstance(wiring, Described), f"a sequential layer has no wiring {wiring}"
        self.norm_first = wiring.norms == "before"

    def _forward(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        attention, mlp = self.attention, self.mlp
        y = attention(self._enter(attention, x), inputs)
        x = x + self._leave(attention, y, inputs)
        y = mlp(self._enter(mlp, x), inputs)
        return x + self._leave(mlp, y, inputs)

    def _enter(self, half: Half, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = half.norm(x) if self.norm_first else x
        return normed

    def _leave(self, half: Half, y: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return what is added to the residual stream."""
        y = half.add_bias(y)
        y = y if self.norm_first else half.norm(y)
        return inputs.drop(y, self.rate, half.site, self.region)


def module_of(layer: Layer, around: Around) -> Wiring:
    """Return the module of a layer, on this rank."""
    attention, mlp = (kind_of(half)(half, around) for half in layer.halves.values())
    wiring: Wiring = kind_of(layer.wiring)(layer, attention, mlp, around)
    for each in layer.adapted or ():
        linear = wiring.get_submodule(each.linear)
        assert isinstance(linear, Linear), f"{each.linear} is no linear layer"
        linear.adapter = Added(each, around.region, around.expert, f"layers.{around.layer}.{each.linear}.adapter")
    return wiring
