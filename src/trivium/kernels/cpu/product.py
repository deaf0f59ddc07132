"""Products of matrices on a processor: of the two libraries that torch has there, by the faster; and in fp32 those of
bf16 numbers that would take longer than they do in fp32.

torch hands fp32 products to MKL, which on processors of another maker than its own that have AVX-512 is the slower
(AMD EPYC, one core: 85 GFLOP/s against 185 of oneDNN, which torch has too, for its compiler; a Zen 4: 92 against 102).
On its own maker's it is the faster (Intel Xeon with AVX-512: 80 to 115 against 60 to 110; weight gradients 70 to 115
against 30 to 90).

What is multiplied in fp32 in place of bf16 is widened some rows or columns at a time, and rounded once at the end of
its sum, as instructions for bf16 numbers do. Added to a sum that is fp32 it is not rounded at all.

Legend: T tokens, I inputs, O outputs.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from trivium.kernels import arithmetic
from trivium.kernels.cpu.processor import mkl_multiplies_faster, multiplies_bf16_slowly

Tensor = torch.Tensor

# Numbers of a gradient that are transposed whole; of a larger one how many at once, and the columns they are at least.
# Few leave small holes among the activations that a backward has not freed yet: with 2^20 for both, a step at hidden
# 512 was 1 % faster and took 4 % more memory.
MAX_WHOLE_TRANSPOSE_ELEMENTS, TRANSPOSE_BLOCK_ELEMENTS, MIN_TRANSPOSE_COLUMNS = 1 << 19, 1 << 18, 256
# Multiplications of a product below which calling oneDNN takes longer than it saves. Called again and again it gains
# from a million on; among other work its first microseconds are spent on finding its code again (170 against 30).
MIN_MULTIPLICATIONS = 1 << 22
# Numbers of a weight that are widened at once, and the rows or columns they are at least: many take more memory and no
# less time. And the tokens for which widening takes less than it saves.
WIDENED_BLOCK_ELEMENTS, MIN_WIDENED, MIN_WIDENED_TOKENS = 1 << 16, 128, 64
# Numbers of rows for which oneDNN has code, in multiples.
PREPARED_ROWS = 32


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, into: Tensor | None = None) -> Tensor:
    """x [..., I], weight [O, I], bias [O] -> x W^T + bias [..., O], with its gradients where they are wanted. into:
    where it is written, without bias and gradients."""
    size = x.numel() * weight.shape[0]  # asked first: small models wait for Python more than for products
    if size < MIN_MULTIPLICATIONS or not (_is_for_one_dnn(x, weight) or _is_for_wide(x, weight)):
        if bias is None or size < MIN_MULTIPLICATIONS or not _adds_bias_later(x):
            return arithmetic.product(x, weight, bias, into=into)
        return F.linear(x, weight).add_(bias)
    if into is not None:
        return into.copy_(_multiplied(x, weight, bias))
    has_backward = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return _Product.apply(x, weight, bias) if has_backward else _multiplied(x, weight, bias)


def gradient_of_inputs(grad: Tensor, weight: Tensor, *, into: Tensor | None = None) -> Tensor:
    """grad [..., O], weight [O, I] -> grad W [..., I]. into: where it is written."""
    if grad.numel() * weight.shape[1] < MIN_MULTIPLICATIONS:
        return arithmetic.gradient_of_inputs(grad, weight, into=into)
    if _is_for_wide(grad, weight):
        found = _in_wide(grad, weight.T, None)
    elif _is_for_one_dnn(grad, weight):
        found = _by_one_dnn(grad.contiguous(), weight.T, None)
    else:
        return arithmetic.gradient_of_inputs(grad, weight, into=into)
    return found if into is None else into.copy_(found)


def gradient_of_weight(grad: Tensor, x: Tensor, *, into: Tensor | None = None) -> Tensor:
    """grad [T, O], x [T, I] -> grad^T x [O, I]. into: where it is written, of the same dtype."""
    if grad.numel() * x.shape[1] < MIN_MULTIPLICATIONS:
        return arithmetic.gradient_of_weight(grad, x, into=into)
    if _is_for_wide(grad, x):
        found = grad.new_empty(grad.shape[1], x.shape[1]) if into is None else into
        _add_in_wide(found, grad, x, first=True)
        return found
    if not _is_for_one_dnn(grad, x):
        return arithmetic.gradient_of_weight(grad, x, into=into)
    if grad.numel() <= MAX_WHOLE_TRANSPOSE_ELEMENTS:
        found = _by_one_dnn(grad.contiguous().T, x.contiguous().T, None)
        return found if into is None else into.copy_(found)
    found = grad.new_empty(grad.shape[1], x.shape[1]) if into is None else into
    for rows, part in _rows_of_gradient(found, grad, x):
        rows.copy_(part)
    return found


def add_gradient_of_weight(into: Tensor, grad: Tensor, x: Tensor, *, first: bool = False) -> None:
    """Add grad^T x to `into` [O, I], which may have a wider dtype; grad [T, O], x [T, I]. first: overwrite `into`
    instead."""
    if widens(grad, into.dtype):
        _add_in_wide(into, grad, x, first=first)
    elif first and into.dtype == grad.dtype:
        gradient_of_weight(grad, x, into=into)
    elif first:
        into.copy_(gradient_of_weight(grad, x))
    elif into.dtype != grad.dtype:
        into.add_(gradient_of_weight(grad, x))
    elif grad.numel() * x.shape[1] < MIN_MULTIPLICATIONS or not _is_for_one_dnn(grad, x):
        into.addmm_(grad.T, x)
    else:
        for rows, part in _rows_of_gradient(into, grad, x):
            rows.add_(part.contiguous())  # adding what lies transposed takes longer than copying it first


def widens(narrow: Tensor, dtype: torch.dtype) -> bool:
    """Whether products of such matrices are added up in `dtype` without being rounded to their own before."""
    return dtype == torch.float32 and _is_slow(narrow) and not torch.compiler.is_compiling()


def multiple(dtype: torch.dtype) -> int:
    """Return the number of which a varying number of rows should be a multiple. oneDNN generates code for each number
    of bf16 rows (Zen 4: 256 x 256 by 256 x 128 takes 0.10 ms, and 0.39 or more the first time)."""
    return PREPARED_ROWS if dtype == torch.bfloat16 and not multiplies_bf16_slowly() else 1


def _rows_of_gradient(into: Tensor, grad: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield slices of the rows of `into` with the same rows of grad^T x. oneDNN copies what it transposes, which is
    much for a vocabulary.

    If x has few columns and many tokens, x is transposed instead of grad, and the result is transposed back; this is 7
    to 14 % faster.
    """
    step, inputs = max(MIN_TRANSPOSE_COLUMNS, TRANSPOSE_BLOCK_ELEMENTS // len(grad)), x.shape[1]
    pieces = zip(into.split(step), grad.split(step, dim=1), strict=True)
    if 2 * inputs <= len(x) and inputs <= grad.shape[1]:
        x = x.T.contiguous()
        for rows, columns in pieces:
            yield rows, _by_one_dnn(x, columns.contiguous().T, None).T
    else:
        x = x.contiguous().T
        for rows, columns in pieces:
            yield rows, _by_one_dnn(columns.contiguous().T, x, None)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiplied(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            gradient_of_inputs(grad, weight) if of_x else None,
            gradient_of_weight(rows, x.flatten(0, -2)) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _multiplied(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + bias without autograd, by oneDNN or in fp32."""
    return (_in_wide if _is_for_wide(x, weight) else _by_one_dnn)(x, weight, bias)


def _in_wide(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + bias computed in fp32 from 16-bit factors. The smaller one of x and the result is in fp32 as a
    whole, and the weight in slices."""
    outputs, inputs = weight.shape
    wide_bias = None if bias is None else bias.float()
    if inputs <= outputs:
        found, wide = x.new_empty(*x.shape[:-1], outputs), x.float()
        for rows in _slices(outputs, inputs):
            of_rows = None if wide_bias is None else wide_bias[rows]
            found[..., rows] = product(wide, weight[rows].float(), of_rows)
        return found
    first, *others = _slices(inputs, outputs)
    total = product(x[..., first].float(), weight[:, first].float(), wide_bias)
    for columns in others:
        part, factor = x[..., columns].float(), weight[:, columns].float()
        if mkl_multiplies_faster():
            total.view(-1, outputs).addmm_(part.flatten(0, -2), factor.T)
        else:
            total.add_(product(part, factor))
    return total.to(x.dtype)


def _add_in_wide(into: Tensor, grad: Tensor, x: Tensor, *, first: bool) -> None:
    """Add grad^T x, computed in fp32 from 16-bit factors, to `into`. The smaller one of grad and x is in fp32 as a
    whole."""
    outputs, inputs = into.shape
    by_rows = inputs <= outputs
    whole = (x if by_rows else grad).float()
    for part in _slices(outputs, inputs) if by_rows else _slices(inputs, outputs):
        place = into[part] if by_rows else into[:, part]
        factors = (grad[:, part].float(), whole) if by_rows else (whole, x[:, part].float())
        add_gradient_of_weight(place, *factors, first=first)


def _slices(length: int, width: int) -> Iterator[slice]:
    """Yield slices of `length` rows or columns with `width` numbers each, which are converted to fp32 together."""
    step = max(MIN_WIDENED, WIDENED_BLOCK_ELEMENTS // width)
    return (slice(start, start + step) for start in range(0, length, step))


def _by_one_dnn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


def _adds_bias_later(x: Tensor) -> bool:
    """MKL does not add it: torch first writes it into the result, which is not in a cache then, for MKL to read."""
    return x.dtype.itemsize >= 4 and mkl_multiplies_faster() and not torch.compiler.is_compiling()


def _is_for_wide(a: Tensor, b: Tensor) -> bool:
    """Return whether a product of 16-bit factors is faster in fp32: the CPU multiplies them slowly, and there are
    enough tokens for the conversion of the weight."""
    return (
        _is_slow(a)
        and a.dtype == b.dtype
        and a.numel() >= MIN_WIDENED_TOKENS * a.shape[-1]
        and not torch.compiler.is_compiling()
    )


def _is_slow(a: Tensor) -> bool:
    return a.dtype == torch.bfloat16 and multiplies_bf16_slowly()


def _is_for_one_dnn(a: Tensor, b: Tensor) -> bool:
    return (
        a.dtype == b.dtype == torch.float32
        and not mkl_multiplies_faster()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and not torch.compiler.is_compiling()  # the compiler supports the operator for constant weights only
    )
