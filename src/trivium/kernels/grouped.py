"""Products of consecutive groups of rows, each with a matrix of its own: the reference, a loop over the groups.

Legend: G groups, N rows of all groups, I inputs, O outputs.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

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


class Part(NamedTuple):
    """Rows that are computed at once, the matrix that they are multiplied with (None: each group with its own), and the
    arithmetic that does it. groups: those of the rows, if there are several."""

    rows: slice
    matrix: int | None
    arithmetic: Arithmetic
    groups: Groups | None = None

    def by(self, arithmetic: Arithmetic) -> Arithmetic:
        """Return another arithmetic for the rows of this part."""
        return arithmetic if self.groups is None else grouped(arithmetic, self.groups)

    def of(self, weight: Tensor) -> Tensor:
        """weight [G, O, I] -> what the arithmetic multiplies with."""
        return weight if self.matrix is None else weight[self.matrix]


def parts_of(groups: Groups, arithmetic: Arithmetic, *, every: bool = False) -> list[Part]:
    """Return the parts of all rows, at least one, that a device computes one after the other. every: groups without
    rows are parts too, because ranks agree on something in each.

    On a CPU these are the groups that have rows: what one product writes of them is in a cache when the next one reads
    it. An accelerator computes all rows at once.
    """
    if groups.ends.device.type != "cpu":
        return [Part(slice(None), None, grouped(arithmetic, groups), groups)]
    some = [Part(rows, g, arithmetic) for g, rows in enumerate(groups.slices) if every or rows.start < rows.stop]
    return some or [Part(slice(0, 0), 0, arithmetic)]


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
