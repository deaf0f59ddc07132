"""Products of 8-bit numbers with scales: an arithmetic of linear layers.

Each of the three products sums over one dimension K: y = x W^T over the inputs, grad W over the outputs, and grad^T x
over the tokens. Both factors are brought into the form [R, K], multiplied by scales s = largest value of the format /
largest of the numbers that share the scale, and rounded: q = round(x s). The product is that of the q / s, summed in
fp32. Where scales run along K, a matrix and its transpose have other scales, and each is rounded from the original.

Legend: T tokens, I inputs, O outputs, R rows, K the dimension that a product sums over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F

from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.float8 import Format, rounded

Tensor = torch.Tensor
Operand = Literal["activations", "weights", "gradients"]

LEAST_AMAX = 1e-12  # scales of smaller numbers would leave the range of fp32
OPERANDS: Mapping[Operand, int] = MappingProxyType({"activations": 0, "weights": 1, "gradients": 2})


class Quantised(NamedTuple):
    """codes [R, K] in an 8-bit dtype. inverse: 1 / s, [rows of scales, columns of scales]; each covers all rows or
    columns, one, or `block` of them."""

    codes: Tensor
    inverse: Tensor
    block: int = 1

    def values(self) -> Tensor:
        """Return q / s in the dtype of the scales."""
        return self.codes.to(self.inverse.dtype) * spread(self.inverse, self.codes.shape, self.block)


# (a [M, K], b [N, K], dtype) -> a b^T [M, N], summed in fp32 or wider and rounded to the dtype.
ScaledProduct = Callable[[Quantised, Quantised, torch.dtype], Tensor]


def product_of_values(
    a: Quantised, b: Quantised, dtype: torch.dtype, multiply: Callable[[Tensor, Tensor], Tensor] = F.linear
) -> Tensor:
    """Return a b^T from the numbers that the codes stand for: the reference of kernels that multiply codes."""
    return multiply(a.values(), b.values()).to(dtype)


def spread(scales: Tensor, shape: tuple[int, ...], block: int) -> Tensor:
    """Return scales in a shape that broadcasts to [R, K]."""
    for dim in (0, 1):
        if scales.shape[dim] not in (1, shape[dim]):
            scales = scales.repeat_interleave(block, dim).narrow(dim, 0, shape[dim])
    return scales


class Granularity(NamedTuple):
    """The parts of an operand that share a scale. largest: (x [R, K], operand, block) -> the largest absolute value of
    each part. over: whether a part has all rows, and all of K: then ranks that divide these must agree on it."""

    largest: Callable[[Tensor, Operand, int], Tensor]
    over: tuple[bool, bool]


def _of_all(x: Tensor, operand: Operand, block: int) -> Tensor:
    return x.abs().amax().view(1, 1) if x.numel() else x.new_zeros(1, 1)


def _of_rows(x: Tensor, operand: Operand, block: int) -> Tensor:
    return x.abs().amax(1, keepdim=True) if x.shape[1] else x.new_zeros(len(x), 1)


def _of_blocks(x: Tensor, operand: Operand, block: int) -> Tensor:
    rows, (R, K) = block if operand == "weights" else 1, x.shape
    padded = F.pad(x.abs(), (0, -K % block, 0, -R % rows))
    return padded.view(len(padded) // rows, rows, padded.shape[1] // block, block).amax((1, 3))


GRANULARITIES: Mapping[str, Granularity] = MappingProxyType(
    {
        "tensor": Granularity(_of_all, (True, True)),
        "row": Granularity(_of_rows, (False, True)),
        "block": Granularity(_of_blocks, (False, False)),
    }
)


class Scaling(NamedTuple):
    """The rule of the scales of a layer. formats: of activations, weights and gradients. power_of_two: scales are
    rounded down to one. margin: powers of two between the largest scaled number and the largest value."""

    granularity: Granularity
    formats: tuple[Format, Format, Format]
    block: int = 128
    power_of_two: bool = False
    margin: int = 0

    def scales(self, amax: Tensor, of: Format) -> Tensor:
        """Return the scales of parts with these largest absolute values, which are in fp32 or wider."""
        found: Tensor = of.largest / 2**self.margin / amax.clamp(min=LEAST_AMAX)
        if self.power_of_two:
            # found = mantissa · 2^exponent, with a mantissa from 1/2 to 1. In fp32 the last bits of fp64 do not matter.
            mantissa, exponent = torch.frexp(found.float())
            half = (mantissa / mantissa / 2).to(found.dtype)  # NaN stays NaN, and 0 (of infinity) becomes NaN
            found = torch.ldexp(half, exponent)
        return found


class Earlier:
    """The largest absolute values of the operands of one layer in earlier steps, for delayed scaling.

    past [3]: by operand; 0 where there was none. seen [3]: of this step so far. Both lie in tensors of all layers.
    """

    def __init__(self, past: Tensor, seen: Tensor, step: "Step") -> None:
        self.past, self.seen, self.step = past, seen, step

    def amax(self, operand: Operand, of: Format, now: Callable[[], Tensor]) -> Tensor:
        """Return the value to scale with. now: returns that of the operand itself, which the first step uses."""
        number = OPERANDS[operand]
        if not self.step.has_past:
            found = now()
            self._see(number, found)
            return found
        past = self.past[number].view(1, 1)
        return torch.where(past > 0, past, of.largest)  # a scale of 1 where all numbers were 0

    def see(self, operand: Operand, x: Tensor) -> None:
        """Keep the largest value of an operand for the next steps."""
        if self.step.has_past and self.step.collects and x.numel():
            self._see(OPERANDS[operand], x.abs().amax().view(1, 1))

    def _see(self, number: int, amax: Tensor) -> None:
        if self.step.collects:
            place = self.seen[number : number + 1]
            torch.maximum(place, amax.view(1).to(place.dtype), out=place)


@dataclass
class Step:
    """has_past: whether there were steps before. collects: whether this pass is one of a training step."""

    has_past: bool = False
    collects: bool = False


def of_this_rank(amax: Tensor, dimensions: str) -> Tensor:
    """Return the largest values over ranks that divide dimensions (T, I, O): the same, if there are no others."""
    return amax


@dataclass(eq=False)
class ScaledProducts:
    """The products of one linear layer.

    own: those in the dtype of the weights. multiply: of codes. agreed: (largest values, dimensions) -> those over all
    ranks that divide these dimensions. earlier: the values of earlier steps, if scales are delayed. of_weights: whether
    the gradient of the weight is a product of 8-bit numbers.
    """

    own: Arithmetic
    scaling: Scaling
    multiply: ScaledProduct
    agreed: Callable[[Tensor, str], Tensor] = of_this_rank
    of_weights: bool = True
    earlier: Earlier | None = None

    def arithmetic(self) -> Arithmetic:
        """Return the arithmetic of the layer."""
        return self.own._replace(
            product=self.product,
            gradient_of_inputs=self.gradient_of_inputs,
            gradient_of_weight=self.gradient_of_weight if self.of_weights else self.own.gradient_of_weight,
            add_gradient_of_weight=self.add_gradient_of_weight if self.of_weights else self.own.add_gradient_of_weight,
            widens=_widens if self.of_weights else self.own.widens,
            agrees=self.agreed is not of_this_rank,
        )

    def quantised(self, x: Tensor, operand: Operand, dimensions: str) -> Quantised:
        """x [R, K] -> its codes and scales. dimensions: the names of its two, as "TI"."""
        scaling, of = self.scaling, self.scaling.formats[OPERANDS[operand]]

        def now() -> Tensor:
            over = "".join(name for name, whole in zip(dimensions, scaling.granularity.over, strict=True) if whole)
            amax = scaling.granularity.largest(x, operand, scaling.block)
            return self.agreed(amax.to(torch.promote_types(amax.dtype, torch.float32)), over)

        if self.earlier is None:
            amax = now()
        else:
            amax = self.earlier.amax(operand, of, now)
            self.earlier.see(operand, x)
        scales = scaling.scales(amax, of)
        wide = x.to(torch.promote_types(x.dtype, scales.dtype)) * spread(scales, x.shape, scaling.block)
        if self.earlier is not None:  # a scale of its own makes NaN of an infinite number
            wide = wide.masked_fill(x.isinf(), torch.nan)
        return Quantised(rounded(wide, of).contiguous(), scales.reciprocal(), scaling.block)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, into: Tensor | None = None) -> Tensor:
        """x [..., I], weight [O, I], bias [O] -> x W^T + bias [..., O], with gradients where they are wanted. into:
        where it is written, without them."""
        if into is not None:
            return into.copy_(self._forward(x, weight, bias))
        has_backward = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
        return _Product.apply(x, weight, bias, self) if has_backward else self._forward(x, weight, bias)

    def _forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        a, b = self.quantised(x.flatten(0, -2), "activations", "TI"), self.quantised(weight, "weights", "OI")
        y = self.multiply(a, b, x.dtype).view(*x.shape[:-1], len(weight))
        return y if bias is None else y.add_(bias)

    def gradient_of_inputs(self, grad: Tensor, weight: Tensor, *, into: Tensor | None = None) -> Tensor:
        """grad [..., O], weight [O, I] -> grad W [..., I]; into: where it is written, of the same dtype."""
        a, b = self.quantised(grad.flatten(0, -2), "gradients", "TO"), self.quantised(weight.T, "weights", "IO")
        found = self.multiply(a, b, grad.dtype).view(*grad.shape[:-1], weight.shape[1])
        return found if into is None else into.copy_(found)

    def gradient_of_weight(self, grad: Tensor, x: Tensor, *, into: Tensor | None = None) -> Tensor:
        """grad [T, O], x [T, I] -> grad^T x [O, I]; into: where it is written, of the same dtype."""
        found = self._of_weight(grad, x, grad.dtype)
        return found if into is None else into.copy_(found)

    def add_gradient_of_weight(self, into: Tensor, grad: Tensor, x: Tensor, *, first: bool = False) -> None:
        """Add grad^T x to `into`, or store it there, in the dtype of `into`."""
        found = self._of_weight(grad, x, into.dtype)
        into.copy_(found) if first else into.add_(found)

    def _of_weight(self, grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
        a, b = self.quantised(grad.T, "gradients", "OT"), self.quantised(x.T, "activations", "IT")
        return self.multiply(a, b, dtype)


def _widens(narrow: Tensor, dtype: torch.dtype) -> bool:
    return narrow.dtype.itemsize == 2 and dtype == torch.float32


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, products: ScaledProducts) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.products = products.arithmetic()
        return products._forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (grad,), (x, weight), products = grads, ctx.saved_tensors, ctx.products
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            products.gradient_of_inputs(grad, weight) if of_x else None,
            products.gradient_of_weight(rows, x.flatten(0, -2)) if of_weight else None,
            products.gradient_of_bias(rows) if of_bias else None,
            None,
        )
