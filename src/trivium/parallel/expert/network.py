"""The gated feed-forward networks of experts, each of which computes its own rows.

Legend: T tokens, N rows of all experts, E experts, H hidden, F columns of an expert here, I inputs and O outputs of a
matrix, R rank of an adapter.
"""

from typing import Any, NamedTuple

import torch

from trivium.kernels.activations import Activation
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.grouped import Part, parts_of
from trivium.parallel.expert.rows import Rows
from trivium.parallel.tensor.weight_gradients import WeightGradients
from trivium.plan.adapters import Factors

Tensor = torch.Tensor
# Rows are added, to a multiple, if an expert has at least so many multiples on average: they take less than they save.
MIN_MULTIPLES = 4


class Matrices(NamedTuple):
    """A matrix of each expert here, that with which it multiplies, how an adapter changes it, and the arithmetic of the
    products with it. The second is the first, or what an adapter makes of a frozen one."""

    weight: torch.nn.Parameter
    multiplied: Tensor
    added: Factors | None
    arithmetic: Arithmetic

    @property
    def parameters(self) -> tuple[torch.nn.Parameter, ...]:
        """The weights, and A and B of an adapter."""
        return (self.weight,) if self.added is None else (self.weight, self.added.a, self.added.b)

    def given(self, later: WeightGradients) -> tuple[Tensor | None, ...]:
        """Return the tensors that are computed with: what is multiplied, A and B, and the factors of outputs. Those
        whose gradients do not come by autograd are hidden from it."""
        a, b, _, outputs = self.added or Factors(None, None, 1.0)
        every: list[tuple[Any, Any]] = [(self.weight, self.multiplied), (a, a), (b, b), (None, outputs)]
        return tuple(x.detach() if p is not None and later.takes(p) else x for p, x in every)


class _Side(NamedTuple):
    """One of the matrices, without the tensors that are saved for the backward. scale: of A and B, where there are
    some."""

    parameters: tuple[torch.nn.Parameter, ...]
    scale: float | None
    arithmetic: Arithmetic


class _How(NamedTuple):
    """Hidden in a tuple from autograd, which would make a leaf of a weight that is an argument. moved: the number among
    the rows of each weight, where there are rows between them."""

    rows: Rows
    moved: Tensor | None
    function: Activation
    both: tuple[_Side, _Side]
    later: WeightGradients
    arithmetic: Arithmetic
    parts: list[Part]

    def products(self, given: tuple[Tensor | None, ...]) -> tuple["_Product", "_Product"]:
        """Return the products with both matrices. given: what both are computed with."""
        up, down = self.both
        half = len(given) // 2
        return _Product(self, up, given[:half]), _Product(self, down, given[half:])

    def factors(self, weights: Tensor) -> Tensor:
        """weights [N] -> of all rows [N, 1]: 0 of those between them."""
        if self.moved is None:
            return weights.unsqueeze(1)
        return weights.new_zeros(len(self.rows.order), 1).index_copy_(0, self.moved, weights.unsqueeze(1))


def networks(
    x: Tensor,
    weights: Tensor,
    rows: Rows,
    up: Matrices,
    down: Matrices,
    function: Activation,
    later: WeightGradients,
    arithmetic: Arithmetic,
) -> Tensor:
    """Return the sum of each token's experts times their weights [T, H]. arithmetic: of adapters.

    x [T, H], weights [N], up [E, 2, F, H], down [E, H, F]. The weights multiply what `down` reads, so that the backward
    needs no expert's result, unless an adapter multiplies that by trained factors. It computes the function again, from
    what that read, or from what was multiplied to be read.
    """
    agrees = up.arithmetic.agrees or down.arithmetic.agrees
    multiple, moved = arithmetic.multiple(x.dtype), None
    if multiple > 1 and len(weights) >= MIN_MULTIPLES * multiple * len(up.weight):
        rows, moved = rows.padded(multiple)
    parts = parts_of(rows.groups, x.shape[1] + 3 * down.weight.shape[-1], every=agrees)
    sides = [_Side(m.parameters, None if m.added is None else m.added.scale, m.arithmetic) for m in (up, down)]
    how = _How(rows, moved, function, (sides[0], sides[1]), later, arithmetic, parts)
    found: Tensor = _Networks.apply(x, weights, how, *up.given(later), *down.given(later))
    return found


class _Networks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, how: _How, *given: Tensor | None) -> Tensor:
        (up, down), rows, kept = how.products(given), how.rows, []
        factors, y = how.factors(weights), x.new_empty(len(rows.tokens), x.shape[1])
        narrow = factors.to(x.dtype)  # a product of two dtypes would copy the larger one
        for part in how.parts:
            before, low_up = up.of(part, x.index_select(0, rows.tokens[part.rows]))
            inner = how.function.value(up.scaled(part, before)).mul_(narrow[part.rows])
            if down.outputs is None:
                result, (_, low_down) = None, down.of(part, inner, into=y[part.rows])
            else:
                result, low_down = down.of(part, inner)
                down.scaled(part, result, into=y[part.rows])
            kept += [before, low_up, result, low_down]
        ctx.save_for_backward(x, factors, *kept, *given)
        ctx.how = how
        return rows.summed(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        how, parts = ctx.how, ctx.how.parts
        x, factors, *saved = ctx.saved_tensors
        kept, given = saved[: 4 * len(parts)], saved[4 * len(parts) :]
        up, down = how.products(tuple(given))
        tokens = how.rows.tokens
        d_factors, d_x = factors.new_empty(len(tokens)), x.new_empty(len(tokens), x.shape[1])
        narrow = factors.to(x.dtype)
        for n, part in enumerate(parts):
            here, (before, low_up, result, low_down) = part.rows, kept[4 * n : 4 * n + 4]
            value, pullback = how.function.value_again(up.scaled(part, before))
            grad = down.gradient_before(part, grads[0].index_select(0, tokens[here]), result)
            d_value, d_low = down.gradient_of_inputs(part, grad)
            torch.sum(value * d_value, -1, dtype=d_factors.dtype, out=d_factors[here])
            down.add_gradients(part, grad, value.mul_(narrow[here]), low_down, d_low)
            d_read = up.gradient_before(part, pullback(d_value.mul_(narrow[here])), before)
            _, d_low = up.gradient_of_inputs(part, d_read, into=d_x[here])
            up.add_gradients(part, d_read, x.index_select(0, tokens[here]), low_up, d_low)
        d_weights = d_factors if how.moved is None else d_factors.index_select(0, how.moved)
        return how.rows.summed(d_x), d_weights, None, *up.found, *down.found


class _Product:
    """The product of rows with the matrices of their experts [E, O, I]: x W^T, and s (x A^T) B^T of an adapter, whose
    sum factors of outputs [E, O] may multiply."""

    def __init__(self, how: _How, side: _Side, given: tuple[Tensor | None, ...]) -> None:
        self.how, self.side, self.outputs = how, side, given[-1]
        self.whole = [each.flatten(1, -2) for each in given[:-1] if each is not None]
        self.weight, *self.factors = self.whole
        self.found: list[Tensor | None] = [None] * len(given)  # gradients, where autograd wants them

    def of(self, part: Part, x: Tensor, into: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x [N, I] -> [N, O] before the factors of outputs, and s x A^T [N, R] of an adapter; rows of a part."""
        y = part.product(self.side.arithmetic, x, self.weight, into=into)
        if self.side.scale is None:
            return y, None
        (a, b), arithmetic = self.factors, self.how.arithmetic
        low = part.product(arithmetic, x, a).mul_(self.side.scale)
        return y.add_(part.product(arithmetic, low, b)), low

    def scaled(self, part: Part, y: Tensor, into: Tensor | None = None) -> Tensor:
        """y [N, O] times the factors of outputs, rows of a part; y itself without any."""
        if self.outputs is None:
            return y
        found = torch.empty_like(y) if into is None else into
        for number, rows in part.groups:
            torch.mul(y[rows], self.outputs[number], out=found[rows])
        return found

    def gradient_before(self, part: Part, grad: Tensor, y: Tensor) -> Tensor:
        """grad [N, O] -> that before the factors of outputs; their own gradient is added up. y [N, O]: what they
        multiplied."""
        if self.outputs is None:
            return grad
        found = self.found[-1]
        if found is None:
            found = self.found[-1] = torch.zeros_like(self.outputs)
        for number, rows in part.groups:
            found[number] += (grad[rows] * y[rows]).sum(0)
        return self.scaled(part, grad)

    def gradient_of_inputs(self, part: Part, grad: Tensor, into: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """grad [N, O] -> that of x [N, I], and of x A^T [N, R]; rows of a part."""
        d_x = part.gradient_of_inputs(self.side.arithmetic, grad, self.weight, into=into)
        if self.side.scale is None:
            return d_x, None
        (a, b), arithmetic = self.factors, self.how.arithmetic
        d_low = part.gradient_of_inputs(arithmetic, grad, b).mul_(self.side.scale)
        return d_x.add_(part.gradient_of_inputs(arithmetic, d_low, a)), d_low

    def add_gradients(self, part: Part, grad: Tensor, x: Tensor, low: Tensor | None, d_low: Tensor | None) -> None:
        """Add the gradients of a part to those of the parameters where autograd wants them; hand their factors on where
        it does not."""
        factors = [(grad, x)] if low is None or d_low is None else [(grad, x), (d_low, x), (grad, low)]
        later, ends = self.how.later, part is self.how.parts[-1]
        for n, (parameter, (left, right)) in enumerate(zip(self.side.parameters, factors, strict=True)):
            arithmetic = self.how.arithmetic if n else self.side.arithmetic
            if later.takes(parameter):
                for place, (number, rows) in enumerate(part.groups, 1):
                    more = not ends or place < len(part.groups)
                    later.take(parameter, left[rows], right[rows], arithmetic, matrix=number, more=more)
            elif parameter.requires_grad:
                found = self.found[n]
                if found is None:
                    found = self.found[n] = torch.zeros_like(parameter)
                whole = found.view(self.whole[n].shape)
                for number, rows in part.groups:
                    arithmetic.gradient_of_weight(left[rows], right[rows], into=whole[number])
