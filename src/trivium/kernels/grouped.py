"""Products of consecutive groups of rows, each with a matrix of its own: the reference, a loop over the groups.

Legend: G groups, N rows of all groups, I inputs, O outputs.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import torch

from trivium.kernels.arithmetic import Arithmetic

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Groups:
    """Consecutive groups of rows. ends [G], int32: the row behind the last one of each group."""

    ends: Tensor

    @property
    def counts(self) -> Tensor:
        """[G], int64: the number of rows of each group."""
        return self.ends.diff(prepend=self.ends.new_zeros(1)).long()

    @cached_property
    def slices(self) -> list[slice]:
        """The rows of each group. The host waits for their numbers once."""
        return [slice(start, stop) for start, stop in pairwise([0, *self.ends.tolist()])]


def grouped(arithmetic: Arithmetic, groups: Groups) -> Arithmetic:
    """Return the arithmetic of weights [G, O, I], of which each group of rows is multiplied with its own. Gradients of
    weights are [G O, I]."""
    return Arithmetic(
        product=partial(_product, arithmetic, groups),
        gradient_of_inputs=partial(_gradient_of_inputs, arithmetic, groups),
        gradient_of_weight=partial(_gradient_of_weight, arithmetic, groups),
        add_gradient_of_weight=partial(_add_gradient_of_weight, arithmetic, groups),
        widens=arithmetic.widens,
    )


def _product(arithmetic: Arithmetic, groups: Groups, x: Tensor, weight: Tensor) -> Tensor:
    """x [N, I], weight [G, O, I] -> [N, O]."""
    return torch.cat([arithmetic.product(x[rows], w) for rows, w in zip(groups.slices, weight, strict=True)])


def _gradient_of_inputs(arithmetic: Arithmetic, groups: Groups, grad: Tensor, weight: Tensor) -> Tensor:
    """grad [N, O], weight [G, O, I] -> [N, I]."""
    pairs = zip(groups.slices, weight, strict=True)
    return torch.cat([arithmetic.gradient_of_inputs(grad[rows], w) for rows, w in pairs])


def _gradient_of_weight(
    arithmetic: Arithmetic, groups: Groups, grad: Tensor, x: Tensor, *, into: Tensor | None = None
) -> Tensor:
    """grad [N, O], x [N, I] -> [G O, I]."""
    found = grad.new_empty(len(groups.ends) * grad.shape[1], x.shape[1]) if into is None else into
    _add_gradient_of_weight(arithmetic, groups, found, grad, x, first=True)
    return found


def _add_gradient_of_weight(
    arithmetic: Arithmetic, groups: Groups, into: Tensor, grad: Tensor, x: Tensor, *, first: bool = False
) -> None:
    """Add the gradients to `into` [G O, I], or store them there."""
    for rows, place in zip(groups.slices, into.view(len(groups.ends), grad.shape[1], x.shape[1]), strict=True):
        if rows.start < rows.stop or arithmetic.agrees:
            arithmetic.add_gradient_of_weight(place, grad[rows], x[rows], first=first)
        elif first:
            place.zero_()
