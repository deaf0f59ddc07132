"""Activation functions by their names in settings."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from trivium.kernels.gelu import Gelu, gelu
from trivium.kernels.gelu_exact import GeluExact, gelu_exact
from trivium.parallel.tensor.row_product import ActivationFunction


class Activation(NamedTuple):
    """apply: the function. again: the same for a backward that computes its value again."""

    apply: Callable[[torch.Tensor], torch.Tensor]
    again: ActivationFunction


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {"gelu_tanh": Activation(gelu, Gelu()), "gelu": Activation(gelu_exact, GeluExact())}
)
