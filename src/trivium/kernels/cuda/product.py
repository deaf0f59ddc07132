"""Products on an accelerator: gradients of 16-bit weights are added to fp32 sums without being rounded before.

Legend: T tokens, I inputs, O outputs.
"""

from functools import cache

import torch

from trivium.kernels import arithmetic

Tensor = torch.Tensor

MIN_SUMMED_ELEMENTS = 1 << 23  # gradients of this size are summed by a product; below, one launch beats two


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, into: Tensor | None = None) -> Tensor:
    """Return x W^T + bias. Of an input that is not contiguous torch would make a small product for each position."""
    return arithmetic.product(x.contiguous(), weight, bias, into=into)


def gradient_of_bias(grad: Tensor) -> Tensor:
    """grad [T, O] -> its sum over the tokens [O]."""
    if grad.dtype.itemsize != 2 or grad.numel() < MIN_SUMMED_ELEMENTS:
        return grad.sum(0)
    # A product reads it faster than torch's sum does (H200, 2048 x 10240: 12.6 us and 21.5), and also rounds once.
    return torch.mv(grad.T, grad.new_ones(len(grad)))


def add_gradient_of_weight(into: Tensor, grad: Tensor, x: Tensor, *, first: bool = False) -> None:
    """Add grad^T x to `into`, or store it there."""
    if widens(grad, into.dtype):
        _add_unrounded(into, grad, x, first=first)
    else:
        arithmetic.add_gradient_of_weight(into, grad, x, first=first)


def widens(narrow: Tensor, dtype: torch.dtype) -> bool:
    """Return whether products of 16-bit matrices are added to a sum of `dtype` unrounded."""
    return narrow.dtype.itemsize == 2 and dtype == torch.float32 and _multiplies_into_wide(narrow.device, narrow.dtype)


@cache
def _multiplies_into_wide(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether torch adds a product to a wider sum; not every build and accelerator does, so it is tried."""
    ones, into = (torch.ones(16, 16, device=device, dtype=d) for d in (dtype, torch.float32))
    try:
        _add_unrounded(into, ones, ones, first=False)
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # these do not say what the device can do
        raise
    except RuntimeError:  # not implemented, or not supported
        return False
    return bool((into == 17).all())


def _add_unrounded(into: Tensor, grad: Tensor, x: Tensor, *, first: bool) -> None:
    torch.ops.aten.addmm.dtype_out(into, grad.T, x, into.dtype, beta=0 if first else 1, out=into)
