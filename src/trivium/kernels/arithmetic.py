"""The arithmetic of linear layers: how their three products, and the sum of weight gradients, are computed.

A layer is built with its arithmetic: that of the device for numbers of the weights' own dtype, or one that is made of
it for this layer, such as products of 8-bit numbers (`scaled.py`).

Legend: T tokens, I inputs, O outputs.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, into: Tensor | None = None) -> Tensor:
    """Return x W^T + bias, in plain torch."""
    return F.linear(x, weight, bias) if into is None else torch.mm(x, weight.T, out=into)


def gradient_of_inputs(grad: Tensor, weight: Tensor, *, into: Tensor | None = None) -> Tensor:
    """Return grad W, in plain torch."""
    return torch.matmul(grad, weight, out=into)


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
    """The products of a linear layer; by default in plain torch. `into`: where a product is written, of the same dtype.

    product: x [..., I], weight [O, I], bias [O] or None -> x W^T + bias [..., O], with gradients where they are wanted;
    into: [T, O] for x [T, I] without bias, outside autograd.
    gradient_of_inputs: grad [..., O], weight [O, I] -> grad W [..., I].
    gradient_of_weight: grad [T, O], x [T, I] -> grad^T x [O, I].
    add_gradient_of_weight: adds grad^T x to `into` [O, I], which may have a wider dtype; `first`: stores it instead.
    gradient_of_bias: grad [T, O] -> its sum over the tokens [O].
    widens: whether products of such matrices are added to a sum of a dtype without being rounded to their own before.
    multiple: the number of which a varying number of rows should be a multiple in a dtype, because the device prepares
    its products for each number of rows when it meets it first.
    agrees: whether ranks exchange numbers in each product, so that they must compute the same ones, empty ones too.
    """

    product: Callable[..., Tensor] = product
    gradient_of_inputs: Callable[..., Tensor] = gradient_of_inputs
    gradient_of_weight: Callable[..., Tensor] = gradient_of_weight
    add_gradient_of_weight: Callable[..., None] = add_gradient_of_weight
    gradient_of_bias: Callable[[Tensor], Tensor] = lambda grad: grad.sum(0)
    widens: Callable[[Tensor, torch.dtype], bool] = lambda narrow, dtype: False
    multiple: Callable[[torch.dtype], int] = lambda dtype: 1
    agrees: bool = False
