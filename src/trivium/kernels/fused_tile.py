"""One tile of attention by PyTorch's fused kernels, with what is needed to join it to others of the same queries.

Legend: B sequences, N heads, S queries, K keys, D head width.
"""

import math
from typing import Any, NamedTuple

import torch

from trivium.kernels.cpu import fused_attention as processor_kernel
from trivium.kernels.dtypes import NARROW

Tensor = torch.Tensor

WIDTHS, WIDEST = 8, 256  # head widths of the kernels of accelerators: multiples of, and at most
AMPERE = 8  # first compute capability that has them

# What an accelerator's kernel wants back in the backward.
About = tuple[Any, ...]


class Known(NamedTuple):
    """Of queries, over all their keys: the result [B, N, S, D], the logarithm of the sum [B, N, S]; and `about`."""

    out: Tensor
    sums: Tensor
    about: About


def suits(q: Tensor) -> bool:
    """Whether there is a kernel for such queries [B, N, S, D]."""
    if q.device.type == "cpu":
        return True
    if q.device.type != "cuda" or q.dtype not in NARROW:
        return False
    width = q.shape[-1]
    return width % WIDTHS == 0 and width <= WIDEST and _is_new_enough(q.device)


def _is_new_enough(device: torch.device) -> bool:
    """Cards before Ampere (V100, T4) have no such kernel. Of tensors without memory only shapes are asked."""
    return not torch.cuda.is_available() or torch.cuda.get_device_properties(device).major >= AMPERE


def takes_masks(q: Tensor) -> bool:
    """Whether that kernel takes a mask."""
    return q.device.type == "cpu"


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, triangle: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, About]:
    """q [B, N, S, D], k and v [B, N, K, D] -> the result over these keys [B, N, S, D], and the logarithm of each
    query's sum of exponentials [B, N, S]; in fp32 where a processor widens the queries, and so are the gradients.

    triangle: a query sees the keys of its own number and before. mask [B or 1, 1, S, K]: true where it sees a key.
    """
    if q.device.type == "cpu":
        out, sums = processor_kernel.attend(q, k, v, causal=triangle, hiding=_hiding(mask, q))
        # Of a query that sees no key the kernel says 0, as if it saw one.
        return out, sums if mask is None else sums.masked_fill(~mask.any(-1), -math.inf), ()
    out, sums, *about = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, triangle)
    return out, sums, tuple(about[:6])


def gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, known: Known, *, triangle: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Of q, k and v of a tile. What is known is over all keys, not those of the tile alone: what the kernel takes for
    a key's share of the tile is then its share of all."""
    grad, out, sums = grad.contiguous(), known.out, known.sums.contiguous()
    if q.device.type == "cpu":
        hiding = _hiding(mask, q)
        return processor_kernel.gradients(grad, q, k, v, out, sums, causal=triangle, hiding=hiding)
    starts_q, starts_k, most_q, most_k, seed, offset = known.about
    d_q, d_k, d_v = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, out, sums, starts_q, starts_k, most_q, most_k, 0.0, triangle, seed, offset
    )
    return d_q, d_k, d_v


def _hiding(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """What is added to scores."""
    return None if mask is None else q.new_zeros(mask.shape).masked_fill_(~mask, -math.inf)
