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
    """A matrix of each expert here, what an adapter adds to each, and the arithmetic of the products with it."""

    weight: torch.nn.Parameter
    added: Factors | None
    arithmetic: Arithmetic

    @property
    def parameters(self) -> tuple[torch.nn.Parameter, ...]:
        """The weights, and A and B of an adapter."""
        return (self.weight,) if self.added is None else (self.weight, self.added.a, self.added.b)


class _How(NamedTuple):
    """Hidden in a tuple from autograd, which would make a leaf of a weight that is an argument. moved: the number among
    the rows of each weight, where there are rows between them."""

    rows: Rows
    moved: Tensor | None
    function: Activation
    both: tuple[Matrices, Matrices]
    later: WeightGradients
    arithmetic: Arithmetic
    parts: list[Part]

    def products(self, given: tuple[Tensor, ...]) -> tuple["_Product", "_Product"]:
        """Return the products with both matrices. given: the tensors of all their parameters."""
        up, down = self.both
        first = len(up.parameters)
        return _Product(self, up, given[:first]), _Product(self, down, given[first:])

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
    needs no expert's result. It computes the function again, from what that read.
    """
    agrees = up.arithmetic.agrees or down.arithmetic.agrees
    multiple, moved = arithmetic.multiple(x.dtype), None
    if multiple > 1 and len(weights) >= MIN_MULTIPLES * multiple * len(up.weight):
        rows, moved = rows.padded(multiple)
    parts = parts_of(rows.groups, x.shape[1] + 3 * down.weight.shape[-1], every=agrees)
    how = _How(rows, moved, function, (up, down), later, arithmetic, parts)
    given = [p.detach() if later.takes(p) else p for matrices in (up, down) for p in matrices.parameters]
    found: Tensor = _Networks.apply(x, weights, how, *given)
    return found


class _Networks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, how: _How, *given: Tensor) -> Tensor:
        (up, down), rows, kept = how.products(given), how.rows, []
        factors, y = how.factors(weights), x.new_empty(len(rows.tokens), x.shape[1])
        for part in how.parts:
            read, low_up = up.of(part, x.index_select(0, rows.tokens[part.rows]))
            inner = how.function.value(read).mul_(factors[part.rows])
            _, low_down = down.of(part, inner, into=y[part.rows])
            kept += [read, low_up, low_down]
        ctx.save_for_backward(x, factors, *kept, *given)
        ctx.how = how
        return rows.summed(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        how, parts = ctx.how, ctx.how.parts
        x, factors, *saved = ctx.saved_tensors
        kept, given = saved[: 3 * len(parts)], saved[3 * len(parts) :]
        up, down = how.products(tuple(given))
        tokens = how.rows.tokens
        d_factors, d_x = factors.new_empty(len(tokens)), x.new_empty(len(tokens), x.shape[1])
        for n, part in enumerate(parts):
            here, (read, low_up, low_down) = part.rows, kept[3 * n : 3 * n + 3]
            value, pullback = how.function.value_again(read)
            grad = grads[0].index_select(0, tokens[here])
            d_value, d_low = down.gradient_of_inputs(part, grad)
            torch.sum(value * d_value, -1, dtype=d_factors.dtype, out=d_factors[here])
            down.add_gradients(part, grad, value.mul_(factors[here]), low_down, d_low)
            d_read = pullback(d_value.mul_(factors[here]))
            _, d_low = up.gradient_of_inputs(part, d_read, into=d_x[here])
            up.add_gradients(part, d_read, x.index_select(0, tokens[here]), low_up, d_low)
        d_weights = d_factors if how.moved is None else d_factors.index_select(0, how.moved)
        return how.rows.summed(d_x), d_weights, None, *up.found, *down.found


class _Product:
    """The product of rows with the matrices of their experts [E, O, I]: x W^T, and s (x A^T) B^T of an adapter."""

    def __init__(self, how: _How, matrices: Matrices, given: tuple[Tensor, ...]) -> None:
        self.how, self.matrices = how, matrices
        self.weight, *self.factors = self.whole = [each.flatten(1, -2) for each in given]
        self.found: list[Tensor | None] = [None] * len(given)  # gradients, where autograd wants them

    def of(self, part: Part, x: Tensor, into: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """x [N, I] -> [N, O], and s x A^T [N, R] of an adapter; rows of a part."""
        y = part.product(self.matrices.arithmetic, x, self.weight, into=into)
        if self.matrices.added is None:
            return y, None
        (a, b), arithmetic = self.factors, self.how.arithmetic
        low = part.product(arithmetic, x, a).mul_(self.matrices.added.scale)
        return y.add_(part.product(arithmetic, low, b)), low

    def gradient_of_inputs(self, part: Part, grad: Tensor, into: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """grad [N, O] -> that of x [N, I], and of x A^T [N, R]; rows of a part."""
        d_x = part.gradient_of_inputs(self.matrices.arithmetic, grad, self.weight, into=into)
        if self.matrices.added is None:
            return d_x, None
        (a, b), arithmetic = self.factors, self.how.arithmetic
        d_low = part.gradient_of_inputs(arithmetic, grad, b).mul_(self.matrices.added.scale)
        return d_x.add_(part.gradient_of_inputs(arithmetic, d_low, a)), d_low

    def add_gradients(self, part: Part, grad: Tensor, x: Tensor, low: Tensor | None, d_low: Tensor | None) -> None:
        """Add the gradients of a part to those of the parameters where autograd wants them; hand their factors on where
        it does not."""
        factors = [(grad, x)] if low is None or d_low is None else [(grad, x), (d_low, x), (grad, low)]
        later, ends = self.how.later, part is self.how.parts[-1]
        for n, (parameter, (left, right)) in enumerate(zip(self.matrices.parameters, factors, strict=True)):
            arithmetic = self.how.arithmetic if n else self.matrices.arithmetic
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
