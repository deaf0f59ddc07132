"""8-bit floating-point numbers (arXiv 2209.05433): their formats, and a codec in integer arithmetic.

The codec reads and writes the bits of fp32 and fp64 numbers. It does not depend on the casts of torch, which differ
between versions where numbers overflow.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

Tensor = torch.Tensor


class Format(NamedTuple):
    """A format of one sign bit, an exponent with a bias, and a mantissa.

    largest, largest_code: the largest finite value. infinity: its code; None if there is no infinity. dtype: of torch,
    with the same codes.
    """

    mantissa_bits: int
    bias: int
    largest: float
    largest_code: int
    infinity: int | None
    dtype: torch.dtype

    @property
    def least(self) -> float:
        """The smallest positive value, which is subnormal."""
        return 2.0 ** (1 - self.bias - self.mantissa_bits)


E4M3 = Format(3, 7, 448.0, 0x7E, None, torch.float8_e4m3fn)
E5M2 = Format(2, 15, 57344.0, 0x7B, 0x7C, torch.float8_e5m2)
FORMATS: Mapping[str, Format] = MappingProxyType({"e4m3": E4M3, "e5m2": E5M2})
NAN = 0x7F  # the code that is written for NaN


class _Wide(NamedTuple):
    """The layout of a format that numbers are rounded from."""

    integer: torch.dtype
    mantissa_bits: int
    bias: int


_WIDE = {torch.float32: _Wide(torch.int32, 23, 127), torch.float64: _Wide(torch.int64, 52, 1023)}


def encode(x: Tensor, to: Format) -> Tensor:
    """Return the codes of numbers in fp32 or fp64, uint8, rounded half to even. What is beyond the largest value gets
    its code; NaN stays NaN."""
    integer, mantissa_bits, bias = _WIDE[x.dtype]
    bits = x.contiguous().view(integer)
    sign_bit = 8 * x.element_size() - 1
    sign, size = bits < 0, bits & ~(-1 << sign_bit)
    exponent = (size >> mantissa_bits) - bias + to.bias
    mantissa = (size & ((1 << mantissa_bits) - 1)) | (1 << mantissa_bits)
    # Subnormal results have the exponent 1 and a mantissa without its leading one: more bits are dropped.
    dropped = mantissa_bits - to.mantissa_bits + (1 - exponent).clamp(min=0)
    dropped = dropped.clamp(max=mantissa_bits + 2)  # of smaller numbers nothing is left
    kept = mantissa >> dropped
    rest, half = mantissa & ((1 << dropped) - 1), 1 << (dropped - 1)
    kept = kept + ((rest > half) | ((rest == half) & (kept & 1 == 1)))
    # A mantissa that is rounded up to a power of two carries into the exponent, also from a subnormal.
    code = ((exponent.clamp(min=1) - 1) << to.mantissa_bits) + kept
    code = torch.where(size == 0, 0, code)
    code = code.clamp(max=to.largest_code)
    is_nan = size > (2 * bias + 1) << mantissa_bits
    code = torch.where(is_nan, NAN, code)
    return (code | (sign.to(integer) << 7)).to(torch.uint8)


def decode(codes: Tensor, of: Format, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the numbers of codes, uint8; exact in fp32 and fp64."""
    code = codes.to(torch.int64)
    exponent, mantissa = (code & 0x7F) >> of.mantissa_bits, code & ((1 << of.mantissa_bits) - 1)
    significand = torch.where(exponent > 0, mantissa | (1 << of.mantissa_bits), mantissa)
    power = exponent.clamp(min=1) - of.bias - of.mantissa_bits
    size = torch.ldexp(significand.to(torch.float64), power)
    size = torch.where(code & 0x7F > of.largest_code, torch.nan, size)
    if of.infinity is not None:
        size = torch.where(code & 0x7F == of.infinity, torch.inf, size)
    return torch.where(code >= 0x80, -size, size).to(dtype)


def rounded(x: Tensor, to: Format) -> Tensor:
    """Return numbers in the dtype of a format. What is beyond its range becomes its largest value, infinities too; NaN
    stays NaN. Numbers in fp64 are rounded to fp32 first: products of codes are often half-way between two numbers of
    the format, and sums in another order, which differ in their last bits, have to become the same one."""
    if x.dtype == torch.float64:
        x = x.float()
    return x.clamp(-to.largest, to.largest).to(to.dtype)
