"""Products of 8-bit codes by the tensor cores of Hopper and later (torch._scaled_mm). Sizes that its kernels do not
take are padded with zeros.

Legend: M, N rows of the factors, K the dimension that the product sums over.
"""

import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType

from trivium.kernels.scaled import Quantised, product_of_values

Tensor = torch.Tensor

multiply = torch.ops.aten._scaled_mm_v2  # what F.scaled_mm calls, which torch.compile cannot trace
MULTIPLE = 16  # of K and of the rows of both factors
BLOCK = 128  # numbers that share a scale along K, and rows where the scale is of several


def scaled_product(a: Quantised, b: Quantised, dtype: torch.dtype) -> Tensor:
    """a [M, K], b [N, K] -> a b^T [M, N], summed in fp32. With scales of rows the sums are rounded to bf16 before they
    are converted to `dtype`. Where no kernel takes the scales, and in fp64, it is the product of the numbers that the
    codes stand for."""
    if a.inverse.dtype == torch.float64 or not a.codes.numel():
        return product_of_values(a, b, dtype)
    if any(q.inverse.shape[1] > 1 or len(q.inverse) not in (1, len(q.codes)) for q in (a, b)):
        return product_by_blocks(a, b, dtype) if _takes_blocks(a, b) else product_of_values(a, b, dtype)
    M, N, of_rows = len(a.codes), len(b.codes), a.inverse.numel() > 1 or b.inverse.numel() > 1
    scales = [_padded_rows(q.inverse.expand(len(q.codes), 1)) if of_rows else q.inverse for q in (a, b)]
    found: Tensor = torch._scaled_mm(
        _padded(a.codes),
        _padded(b.codes).T,
        scales[0],
        scales[1].T,
        # The only output dtype of torch's own kernel for scales of rows; some versions of cuBLAS have others.
        out_dtype=torch.bfloat16 if of_rows else dtype,
    )
    return found[:M, :N].to(dtype)


def _takes_blocks(a: Quantised, b: Quantised) -> bool:
    """Whether cuBLAS has a kernel: from 12.9 on for Hopper, of operands in E4M3. Of other sizes torch expects other
    shapes where it compiles than where it runs."""
    return (
        a.block == b.block == BLOCK
        and a.codes.dtype == b.codes.dtype == torch.float8_e4m3fn
        and all(size % BLOCK == 0 for size in b.codes.shape)
        and torch.cuda.get_device_capability(a.codes.device)[0] == 9
        and tuple(map(int, (torch.version.cuda or "0.0").split("."))) >= (12, 9)
    )


def product_by_blocks(a: Quantised, b: Quantised, dtype: torch.dtype) -> Tensor:
    """a [M, K], with a scale for 1 x BLOCK numbers, b [N, K], with one for 1 x BLOCK or BLOCK x BLOCK -> a b^T [M, N].
    K and N are multiples of BLOCK.

    The kernel reads the scales of 1 x BLOCK by columns of blocks, and those of BLOCK x BLOCK by rows, with a multiple
    of 4 in each.
    """
    left, columns = _padded(a.codes), a.inverse.shape[1]
    if len(b.inverse) == len(b.codes):
        of_right, recipe = _within(b.inverse.T, columns, len(b.codes)), ScalingType.BlockWise1x128
    else:
        of_right, recipe = _within(b.inverse, len(b.inverse), -(-columns // 4) * 4), ScalingType.BlockWise128x128
    of_left = _within(a.inverse.T, columns, len(left))
    recipes = [ScalingType.BlockWise1x128.value], [recipe.value]
    found: Tensor = multiply(left, b.codes.T, [of_left.T], recipes[0], [], [of_right.T], recipes[1], [], None, dtype)
    return found[: len(a.codes)]


def _within(scales: Tensor, rows: int, columns: int) -> Tensor:
    """Return scales with zeros after them, [rows, columns] in this order in memory."""
    found = scales.new_zeros(rows, columns)
    found[: scales.shape[0], : scales.shape[1]] = scales
    return found


def _padded(codes: Tensor) -> Tensor:
    R, K = codes.shape
    if R % MULTIPLE == 0 and K % MULTIPLE == 0:
        return codes
    return F.pad(codes.view(torch.uint8), (0, -K % MULTIPLE, 0, -R % MULTIPLE)).view(codes.dtype)


def _padded_rows(scales: Tensor) -> Tensor:
    return F.pad(scales, (0, 0, 0, -len(scales) % MULTIPLE)).contiguous()
