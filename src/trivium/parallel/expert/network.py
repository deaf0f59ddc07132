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
    """Hidden in a tuple from autograd, which would make a leaf of a weight that is an argument."""

    rows: Rows
    function: Activation
    both: tuple[Matrices, Matrices]
    later: WeightGradients
    parts: list[Part]

    def products(self, given: tuple[Tensor, ...]) -> tuple["_Product", "_Product"]:
        """Return the products with both matrices. given: the tensors of all their parameters."""
        up, down = self.both
        first = len(up.parameters)
        return _Product(self, up, given[:first]), _Product(self, down, given[first:])


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
    how = _How(rows, function, (up, down), later, parts_of(rows.groups, arithmetic, every=agrees))
    given = [p.detach() if later.takes(p) else p for matrices in (up, down) for p in matrices.parameters]
    found: Tensor = _Networks.apply(x, weights, how, *given)
    return found


class _Networks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, how: _How, *given: Tensor) -> Tensor:
        (up, down), rows, kept = how.products(given), how.rows, []
        factor, y = weights.unsqueeze(1), x.new_empty(len(rows.tokens), x.shape[1])
        for part in how.parts:
            read, low_up = up.of(part, x.index_select(0, rows.tokens[part.rows]))
            inner = how.function.value(read).mul_(factor[part.rows])
            y[part.rows], low_down = down.of(part, inner)
            kept += [read, low_up, low_down]
        ctx.save_for_backward(x, weights, *kept, *given)
        ctx.how = how
        return rows.summed(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        how, parts = ctx.how, ctx.how.parts
        x, weights, *saved = ctx.saved_tensors
        kept, given = saved[: 3 * len(parts)], saved[3 * len(parts) :]
        up, down = how.products(tuple(given))
        tokens, factor = how.rows.tokens, weights.unsqueeze(1)
        d_weights, d_x = torch.empty_like(weights), x.new_empty(len(tokens), x.shape[1])
        for n, part in enumerate(parts):
            here, (read, low_up, low_down) = part.rows, kept[3 * n : 3 * n + 3]
            value, pullback = how.function.value_again(read)
            grad = grads[0].index_select(0, tokens[here])
            d_value, d_low = down.gradient_of_inputs(part, grad)
            d_weights[here] = (value * d_value).sum(-1, dtype=weights.dtype)
            down.add_gradients(part, grad, value.mul_(factor[here]), low_down, d_low)
            d_read = pullback(d_value.mul_(factor[here]))
            d_x[here], d_low = up.gradient_of_inputs(part, d_read)
            up.add_gradients(part, d_read, x.index_select(0, tokens[here]), low_up, d_low)
        return how.rows.summed(d_x), d_weights, None, *up.found, *down.found


class _Product:
    """The product of rows with the matrices of their experts [E, O, I]: x W^T, and s (x A^T) B^T of an adapter."""

    def __init__(self, how: _How, matrices: Matrices, given: tuple[Tensor, ...]) -> None:
        self.later, self.matrices, self.last = how.later, matrices, how.parts[-1]
        self.weight, *self.factors = self.whole = [each.flatten(1, -2) for each in given]
        self.found: list[Tensor | None] = [None] * len(given)  # gradients, where autograd wants them

    def of(self, part: Part, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [N, I] -> [N, O], and s x A^T [N, R] of an adapter; rows of a part."""
        y = part.by(self.matrices.arithmetic).product(x, part.of(self.weight))
        if self.matrices.added is None:
            return y, None
        a, b = self.factors
        low = part.arithmetic.product(x, part.of(a)).mul_(self.matrices.added.scale)
        return y.add_(part.arithmetic.product(low, part.of(b))), low

    def gradient_of_inputs(self, part: Part, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        """grad [N, O] -> that of x [N, I], and of x A^T [N, R]; rows of a part."""
        d_x = part.by(self.matrices.arithmetic).gradient_of_inputs(grad, part.of(self.weight))
        if self.matrices.added is None:
            return d_x, None
        a, b = self.factors
        d_low = part.arithmetic.gradient_of_inputs(grad, part.of(b)).mul_(self.matrices.added.scale)
        return d_x.add_(part.arithmetic.gradient_of_inputs(d_low, part.of(a))), d_low

    def add_gradients(self, part: Part, grad: Tensor, x: Tensor, low: Tensor | None, d_low: Tensor | None) -> None:
        """Add the gradients of a part to those of the parameters where autograd wants them; hand their factors on where
        it does not."""
        factors = [(grad, x)] if low is None or d_low is None else [(grad, x), (d_low, x), (grad, low)]
        for n, (parameter, (left, right)) in enumerate(zip(self.matrices.parameters, factors, strict=True)):
            arithmetic = part.arithmetic if n else part.by(self.matrices.arithmetic)
            if self.later.takes(parameter):
                more = part is not self.last
                self.later.take(parameter, left, right, arithmetic, matrix=part.matrix, more=more)
            elif parameter.requires_grad:
                found = self.found[n]
                if found is None:
                    found = self.found[n] = torch.zeros_like(parameter)
                arithmetic.gradient_of_weight(left, right, into=part.of(found.view(self.whole[n].shape)))
