"""RMSNorm that keeps its input and one number a row, as the kernels of accelerators do.

On a processor torch composes it of operators, which in 16 bits keep the input and the result in fp32 besides: 8 bytes
an element where 2 suffice. Here some rows are computed at a time, so that what is in between stays in a cache.

Legend: R rows, H elements of each.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor

BLOCK_ELEMENTS = 1 << 17  # elements


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x²) + epsilon) · weight over the last dimension (Zhang and Sennrich, arXiv 1910.07467).

    x [..., H], weight [H]; computed in fp32 where x is narrower, and rounded once.
    """
    if torch.compiler.is_compiling():
        return F.rms_norm(x, weight.shape, weight, epsilon)
    # Rows in the order in which they lie in memory, which the result then has too.
    order = sorted(range(x.dim() - 1), key=x.stride, reverse=True)
    found: Tensor = _RmsNorm.apply(x.permute(*order, -1), weight, epsilon)
    return found.permute(*(order.index(dim) for dim in range(x.dim() - 1)), -1)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        rows, H = x.reshape(-1, x.shape[-1]), x.shape[-1]
        wide = torch.promote_types(x.dtype, torch.float32)
        out, scales = torch.empty_like(rows), rows.new_empty(len(rows), 1, dtype=wide)
        for given, scale, into in _some_rows(rows, scales, out):
            given = given.to(wide)
            torch.linalg.vector_norm(given, dim=-1, keepdim=True, out=scale)
            scale.square_().div_(H).add_(epsilon).rsqrt_()
            into.copy_((given * scale).mul_(weight))
        ctx.save_for_backward(x, weight, scales)
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scales = ctx.saved_tensors
        H, wide = x.shape[-1], scales.dtype
        d_x, d_weight = torch.empty(x.shape, dtype=x.dtype), torch.zeros(H, dtype=wide)
        w, rows = weight.to(wide), [t.reshape(-1, H) for t in (x, grads[0], d_x)]
        for given, grad, into, scale in _some_rows(*rows, scales):
            unit, grad = given.to(wide) * scale, grad.to(wide)
            product = unit * grad
            d_weight += product.sum(0)
            along = torch.mv(product, w).div_(-H).unsqueeze(-1)
            into.copy_(torch.addcmul(grad * w, unit, along).mul_(scale))
        return d_x, d_weight.to(weight.dtype), None


def _some_rows(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same rows of each tensor, a cache-sized block at a time."""
    step = max(1, BLOCK_ELEMENTS // tensors[0].shape[-1])
    return zip(*(t.split(step) for t in tensors), strict=True)
