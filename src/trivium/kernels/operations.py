"""The operations of a model, and their backends: what a kind of device computes faster than plain torch.

Each folder beside this file named after a kind of device is a backend, whose `operations.py` has `OPERATIONS`. It is
chosen when a model is built; without the folder the reference computes the same.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from trivium.kernels.activations import ACTIVATIONS, GATED, Activation
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.attention import Attention
from trivium.kernels.scaled import ScaledProduct, product_of_values

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(mean(x²) + epsilon) · weight over the last dimension (arXiv 1910.07467), by torch."""
    return F.rms_norm(x, weight.shape, weight, epsilon)


class Operations(NamedTuple):
    """The operations of a model on one kind of device; by default in plain torch.

    products: of linear layers, in the dtype of the weights. scaled_product: of 8-bit codes. rms_norm: x [..., H],
    weight [H], epsilon -> [..., H], computed in fp32 where x is narrower and rounded once. activations, gated: by their
    names in settings. recording: records the kernels that a function launches, for replays; None where a device has no
    such thing.
    """

    products: Arithmetic = Arithmetic()
    scaled_product: ScaledProduct = product_of_values
    attention: Attention = Attention()
    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    activations: Mapping[str, Activation] = ACTIVATIONS
    gated: Mapping[str, Activation] = GATED
    recording: Callable[[Callable[[], Any]], Any] | None = None


@cache
def operations_of(device: str) -> Operations:
    """Return the operations of a kind of device ("cpu", "cuda"): its backend's, or the reference."""
    backend = f"{__package__}.{device}"
    if find_spec(backend) is None or find_spec(f"{backend}.operations") is None:
        return Operations()
    found: Operations = import_module(f"{backend}.operations").OPERATIONS
    return found
