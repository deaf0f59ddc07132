"""Products of 8-bit codes by the tensor cores of Hopper and later (torch._scaled_mm). Sizes that its kernels do not
take are padded with zeros.

Legend: M, N rows of the factors, K the dimension that the product sums over.
"""

import torch
import torch.nn.functional as F

from trivium.kernels.scaled import Quantised, product_of_values

Tensor = torch.Tensor

MULTIPLE = 16  # of K and of the rows of both factors


def scaled_product(a: Quantised, b: Quantised, dtype: torch.dtype) -> Tensor:
    """a [M, K], b [N, K] -> a b^T [M, N]. With several scales along K, or in fp64, it is the product of the numbers
    that the codes stand for."""
    if max(a.inverse.shape[1], b.inverse.shape[1]) > 1 or a.inverse.dtype == torch.float64 or not a.codes.numel():
        return product_of_values(a, b, dtype)
    M, N, of_rows = len(a.codes), len(b.codes), a.inverse.numel() > 1 or b.inverse.numel() > 1
    scales = [_padded_rows(q.inverse.expand(len(q.codes), 1)) if of_rows else q.inverse for q in (a, b)]
    found: Tensor = torch._scaled_mm(
        _padded(a.codes),
        _padded(b.codes).T,
        scales[0],
        scales[1].T,
        out_dtype=torch.bfloat16 if of_rows else dtype,  # the kernel for scales of rows has no other
    )
    return found[:M, :N].to(dtype)


def _padded(codes: Tensor) -> Tensor:
    R, K = codes.shape
    if R % MULTIPLE == 0 and K % MULTIPLE == 0:
        return codes
    return F.pad(codes.view(torch.uint8), (0, -K % MULTIPLE, 0, -R % MULTIPLE)).view(codes.dtype)


def _padded_rows(scales: Tensor) -> Tensor:
    return F.pad(scales, (0, 0, 0, -len(scales) % MULTIPLE)).contiguous()
