"""Products of consecutive groups of rows, each with a matrix of its own, in a loop over the groups.

Legend: G groups, N rows of all groups, I inputs, O outputs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch

from trivium.kernels.arithmetic import Arithmetic

Tensor = torch.Tensor
# Elements of a part on a CPU: in fp32 they fit into a cache.
MAX_ELEMENTS_AT_ONCE = 1 << 19


@dataclass(frozen=True, eq=False)
class Groups:
    """Consecutive groups of rows. ends [G], int32: the row after the last one of each group."""

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
    """Consecutive rows that are computed at once. groups: the number of each of their groups, and its rows, counted
    from the first row of the part."""

    rows: slice
    groups: list[tuple[int, slice]]

    def product(self, arithmetic: Arithmetic, x: Tensor, weight: Tensor, *, into: Tensor | None = None) -> Tensor:
        """x [N, I], weight [G, O, I] -> [N, O], of the rows of this part. into: where it is written."""
        return self._of_each(arithmetic.product, x, weight, weight.shape[1], into)

    def gradient_of_inputs(
        self, arithmetic: Arithmetic, grad: Tensor, weight: Tensor, *, into: Tensor | None = None
    ) -> Tensor:
        """grad [N, O], weight [G, O, I] -> [N, I], of the rows of this part. into: where it is written."""
        return self._of_each(arithmetic.gradient_of_inputs, grad, weight, weight.shape[2], into)

    def _of_each(
        self, multiply: Callable[..., Tensor], x: Tensor, weight: Tensor, columns: int, into: Tensor | None
    ) -> Tensor:
        found = x.new_empty(len(x), columns) if into is None else into
        for number, rows in self.groups:
            multiply(x[rows], weight[number], into=found[rows])
        return found


def parts_of(groups: Groups, elements: int, *, every: bool = False) -> list[Part]:
    """Return the parts of all rows that a device computes one after the other, at least one group in each. elements:
    the numbers of a row. every: groups without rows are parts too, because ranks agree on something in each.

    On a CPU a part has no more rows than a cache holds: what one operation writes of them is there when the next one
    reads it. An accelerator computes all rows at once.
    """
    most = MAX_ELEMENTS_AT_ONCE if groups.ends.device.type == "cpu" else float("inf")
    some = [(g, rows) for g, rows in enumerate(groups.slices) if every or rows.start < rows.stop]
    return list(_joined(some or [(0, slice(0, 0))], most / elements))


def _joined(groups: list[tuple[int, slice]], most: float) -> Iterator[Part]:
    """Yield parts of at most `most` rows, unless one group has more."""
    here = groups[:1]
    for each in groups[1:]:
        if each[1].stop - here[0][1].start > most:
            yield _part(here)
            here = []
        here.append(each)
    yield _part(here)


def _part(groups: list[tuple[int, slice]]) -> Part:
    first, last = groups[0][1].start, groups[-1][1].stop
    return Part(slice(first, last), [(g, slice(rows.start - first, rows.stop - first)) for g, rows in groups])
