"""The arithmetic of linear layers: how their three products, and the sum of weight gradients, are computed.

A layer is built with its arithmetic, which is chosen by name. Another one, such as a scaled 8-bit arithmetic, is an
entry of `ARITHMETICS`, and a file with its products.

Legend: T tokens, I inputs, O outputs.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def gradient_of_weight(grad: Tensor, x: Tensor, *, into: Tensor | None = None) -> Tensor:
    """Return grad^T x, in plain torch."""
    return grad.T @ x if into is None else torch.mm(grad.T, x, out=into)


def add_gradient_of_weight(into: Tensor, grad: Tensor, x: Tensor, *, first: bool = False) -> None:
    """Add grad^T x to `into`, or store it there, in plain torch. The product is rounded to its own dtype first."""
    if first and into.dtype == grad.dtype:
        gradient_of_weight(grad, x, into=into)
    elif first:
        into.copy_(gradient_of_weight(grad, x))
    elif into.dtype != grad.dtype:
        into.add_(gradient_of_weight(grad, x))
    else:
        into.addmm_(grad.T, x)


class Arithmetic(NamedTuple):
    """The products of a linear layer; by default in plain torch.

    product: x [..., I], weight [O, I], bias [O] or None -> x W^T + bias [..., O], with gradients where they are wanted.
    gradient_of_inputs: grad [..., O], weight [O, I] -> grad W [..., I].
    gradient_of_weight: grad [T, O], x [T, I] -> grad^T x [O, I]; `into`: where it is written, of the same dtype.
    add_gradient_of_weight: adds grad^T x to `into` [O, I], which may have a wider dtype; `first`: stores it instead.
    gradient_of_bias: grad [T, O] -> its sum over the tokens [O].
    widens: whether products of such matrices are added to a sum of a dtype without being rounded to their own before.
    """

    product: Callable[..., Tensor] = F.linear
    gradient_of_inputs: Callable[[Tensor, Tensor], Tensor] = torch.matmul
    gradient_of_weight: Callable[..., Tensor] = gradient_of_weight
    add_gradient_of_weight: Callable[..., None] = add_gradient_of_weight
    gradient_of_bias: Callable[[Tensor], Tensor] = lambda grad: grad.sum(0)
    widens: Callable[[Tensor, torch.dtype], bool] = lambda narrow, dtype: False


# Arithmetics by name, made from the one of the device for numbers of the weights' own dtype.
ARITHMETICS: Mapping[str, Callable[[Arithmetic], Arithmetic]] = MappingProxyType(
    {name: lambda own: own for name in ("fp64", "fp32", "bf16", "fp16")}
)
