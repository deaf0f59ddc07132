"""The gated feed-forward networks of experts, each of which computes its own rows.

Legend: T tokens, N rows of all experts, E experts, H hidden, F columns of an expert here, I inputs and O outputs of a
matrix, R rank of an adapter.
"""

from typing import Any, NamedTuple

import torch

from trivium.kernels.activations import Activation
from trivium.kernels.arithmetic import Arithmetic
from trivium.kernels.grouped import Part, grouped, parts_of
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
    """Return the sum of each token's experts times their weights [T, H].

    x [T, H], weights [N], up [E, 2, F, H], down [E, H, F]. The weights multiply what `down` reads, so that the backward
    needs no expert's result. It computes the function again, from what that read.
    """
    parts = parts_of(rows.groups, arithmetic)
    how = _How(rows, function, (up, down), later, grouped(arithmetic, rows.groups), parts)
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
        rows, function, parts = ctx.how.rows, ctx.how.function, ctx.how.parts
        x, weights, *saved = ctx.saved_tensors
        kept, given = saved[: 3 * len(parts)], saved[3 * len(parts) :]
        up, down = ctx.how.products(tuple(given))
        factor, N = weights.unsqueeze(1), len(weights)
        grad, d_weights = rows.spread(grads[0]), torch.empty_like(weights)
        inner, d_read, d_x = (x.new_empty(N, columns) for columns in (down.inputs, up.outputs, x.shape[1]))
        low_up, low_down, d_low_up, d_low_down = (each.low(N) for each in (up, down, up, down))
        for n, part in enumerate(parts):
            here, (read, of_up, of_down) = part.rows, kept[3 * n : 3 * n + 3]
            value, pullback = function.value_again(read)
            d_value, d_low = down.gradient_of_inputs(part, grad[here])
            d_weights[here] = (value * d_value).sum(-1, dtype=weights.dtype)
            inner[here] = value.mul_(factor[here])
            d_read[here] = pullback(d_value.mul_(factor[here]))
            d_x[here], d_of_up = up.gradient_of_inputs(part, d_read[here])
            for whole, own in ((low_up, of_up), (low_down, of_down), (d_low_up, d_of_up), (d_low_down, d_low)):
                if whole is not None:
                    whole[here] = own
        d_down = down.gradients(grad, inner, low_down, d_low_down)
        del grad, inner
        d_up = up.gradients(d_read, rows.spread(x), low_up, d_low_up)
        return rows.summed(d_x), d_weights, None, *d_up, *d_down


class _Product:
    """The product of rows with the matrices of their experts [E, O, I]: x W^T, and s (x A^T) B^T of an adapter."""

    def __init__(self, how: _How, matrices: Matrices, given: tuple[Tensor, ...]) -> None:
        self.later, self.arithmetic, self.matrices = how.later, how.arithmetic, matrices
        self.weight, *self.factors = (each.flatten(1, -2) for each in given)

    @property
    def inputs(self) -> int:
        return self.weight.shape[-1]

    @property
    def outputs(self) -> int:
        return self.weight.shape[1]

    def low(self, rows: int) -> Tensor | None:
        """Return an empty tensor [rows, R] for what an adapter computes between its matrices."""
        return self.weight.new_empty(rows, self.factors[0].shape[1]) if self.factors else None

    def of(self, part: Part, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [N, I] -> [N, O], and s x A^T [N, R] of an adapter; rows of a part."""
        y = part.arithmetic.product(x, self.weight[part.matrices])
        if self.matrices.added is None:
            return y, None
        a, b = self.factors
        low = part.arithmetic.product(x, a[part.matrices]).mul_(self.matrices.added.scale)
        return y.add_(part.arithmetic.product(low, b[part.matrices])), low

    def gradient_of_inputs(self, part: Part, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        """grad [N, O] -> that of x [N, I], and of x A^T [N, R]; rows of a part."""
        d_x = part.arithmetic.gradient_of_inputs(grad, self.weight[part.matrices])
        if self.matrices.added is None:
            return d_x, None
        a, b = self.factors
        d_low = part.arithmetic.gradient_of_inputs(grad, b[part.matrices]).mul_(self.matrices.added.scale)
        return d_x.add_(part.arithmetic.gradient_of_inputs(d_low, a[part.matrices])), d_low

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
