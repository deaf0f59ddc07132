"""The gated feed-forward networks of experts, each of which computes its own rows.

Legend: T tokens, N rows of all experts, E experts, H hidden, F columns of an expert here, I inputs and O outputs of a
matrix, R rank of an adapter.
"""

from typing import Any, NamedTuple

import torch

from trivium.kernels.activations import Activation
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.grouped import grouped
from trivium.parallel.expert.rows import Rows
from trivium.parallel.tensor.weight_gradients import WeightGradients
from trivium.plan.adapters import Factors

Tensor = torch.Tensor


class Matrices(NamedTuple):
    """A matrix of each expert here, and what an adapter adds to each."""

    weight: torch.nn.Parameter
    added: Factors | None

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
    arithmetic: Arithmetic

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
    """Return the sum of each token's experts times their weights [T, H].

    x [T, H], weights [N], up [E, 2, F, H], down [E, H, F]. The weights multiply what `down` reads, so that the backward
    needs no expert's result. It computes the function again, from what that read.
    """
    how = _How(rows, function, (up, down), later, grouped(arithmetic, rows.groups))
    given = [p.detach() if later.takes(p) else p for matrices in (up, down) for p in matrices.parameters]
    found: Tensor = _Networks.apply(x, weights, how, *given)
    return found


class _Networks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, how: _How, *given: Tensor) -> Tensor:
        up, down = how.products(given)
        read, low_up = up.of(how.rows.spread(x))
        inner = how.function.value(read).mul_(weights.unsqueeze(1))
        y, low_down = down.of(inner)
        ctx.save_for_backward(x, weights, read, low_up, low_down, *given)
        ctx.how = how
        return how.rows.summed(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, read, low_up, low_down, *given = ctx.saved_tensors
        rows, function = ctx.how.rows, ctx.how.function
        up, down = ctx.how.products(tuple(given))
        factor = weights.unsqueeze(1)
        grad = rows.spread(grads[0])
        inner, pullback = function.value_again(read)
        d_inner, d_low = down.gradient_of_inputs(grad)
        d_weights = (inner * d_inner).sum(-1, dtype=weights.dtype)
        d_read = pullback(d_inner.mul_(factor))
        d_down = down.gradients(grad, inner.mul_(factor), low_down, d_low)
        del grad, inner, d_inner
        d_rows, d_low = up.gradient_of_inputs(d_read)
        d_up = up.gradients(d_read, rows.spread(x), low_up, d_low)
        return rows.summed(d_rows), d_weights, None, *d_up, *d_down


class _Product:
    """The product of rows with the matrices of their experts [E, O, I]: x W^T, and s (x A^T) B^T of an adapter."""

    def __init__(self, how: _How, matrices: Matrices, given: tuple[Tensor, ...]) -> None:
        self.later, self.arithmetic, self.matrices = how.later, how.arithmetic, matrices
        self.weight, *self.factors = (each.flatten(1, -2) for each in given)

    def of(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [N, I] -> [N, O], and s x A^T [N, R] of an adapter."""
        y = self.arithmetic.product(x, self.weight)
        if self.matrices.added is None:
            return y, None
        a, b = self.factors
        low = self.arithmetic.product(x, a).mul_(self.matrices.added.scale)
        return y.add_(self.arithmetic.product(low, b)), low

    def gradient_of_inputs(self, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        """grad [N, O] -> that of x [N, I], and of x A^T [N, R]."""
        d_x = self.arithmetic.gradient_of_inputs(grad, self.weight)
        if self.matrices.added is None:
            return d_x, None
        a, b = self.factors
        d_low = self.arithmetic.gradient_of_inputs(grad, b).mul_(self.matrices.added.scale)
        return d_x.add_(self.arithmetic.gradient_of_inputs(d_low, a)), d_low

    def gradients(self, grad: Tensor, x: Tensor, low: Tensor | None, d_low: Tensor | None) -> list[Tensor | None]:
        """Return the gradients of the parameters where autograd wants them; hand their factors on where it does not."""
        factors = [(grad, x)] if low is None or d_low is None else [(grad, x), (d_low, x), (grad, low)]
        return [self._gradient(p, *both) for p, both in zip(self.matrices.parameters, factors, strict=True)]

    def _gradient(self, parameter: torch.nn.Parameter, grad: Tensor, x: Tensor) -> Tensor | None:
        if self.later.takes(parameter):
            self.later.take(parameter, grad, x, self.arithmetic)
            return None
        if not parameter.requires_grad:
            return None
        return self.arithmetic.gradient_of_weight(grad, x).view_as(parameter)
