"""Activation functions, from their definitions."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from trivium.certify.oracle.terms import Tensor


def _gelu_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({"gelu_tanh": _gelu_tanh, "gelu": _gelu})
