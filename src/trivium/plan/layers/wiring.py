"""Connection of a layer's norms, attention and feed-forward half to the residual stream."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trivium.plan.layers.form import LayerForm, NormPosition
from trivium.plan.layers.part import Kept, Moved, Number, Part, Place, Row, under


@dataclass(frozen=True)
class Sequential(Part):
    """x + attention(x), then x + feed_forward(x), each with a norm before or after.

    regions: how often a forward enters, and leaves, a tensor region.
    """

    hidden: int
    norms: NormPosition
    rate: float  # dropout rate
    regions: int = 2

    @classmethod
    def of(cls, form: LayerForm) -> "Sequential":
        """The wiring that the settings describe."""
        return cls(form.hidden, form.norm_position, form.dropout)

    @property
    def drops(self) -> Number:
        """1 where there is dropout, else 0."""
        return np.asarray(self.rate) > 0

    def norms_of(self, half: str) -> tuple[str, ...]:
        """The names of the norms of a half."""
        return ("norm",)

    @property
    def reads_last_product(self) -> bool:
        """Whether the backward needs what the last product of the layer wrote."""
        return self.norms == "after" or self.rate > 0

    @property
    def norm_reads_last_product(self) -> bool:
        """Whether a norm reads what the last product of the layer wrote."""
        return self.norms == "after"

    def moved(self, at: Place) -> Moved:
        """Two norms, and two sums with dropout."""
        stream = at.positions * self.hidden / at.along
        return Moved(22.0 * stream, 28.0 * stream)

    def kept(self, at: Place) -> Iterator[Kept]:
        stream = at.positions * self.hidden / at.along
        yield Kept(4 * stream)  # what two norms and two halves read
        yield Kept(self.drops * 2 * stream)  # masks, or what they were applied to


def with_norms(wiring: Sequential, norm: Part, half: str, part: Part) -> Iterator[Row]:
    """Yield the parameters of a half: those of its norms, then its own."""
    for name in wiring.norms_of(half):
        yield from under(f"{half}.{name}", norm.rows())
    yield from under(half, part.rows())
