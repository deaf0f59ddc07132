"""Norms over the hidden dimension; they act on each position alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.part import Kept, Part, Place, Row, vector


@dataclass(frozen=True)
class LayerNorm(Part):
    """Subtracts the mean, divides by the standard deviation, then applies weight and bias (arXiv 1607.06450)."""

    hidden: int
    epsilon: float

    @classmethod
    def of(cls, form: LayerForm) -> "LayerNorm":
        """The norm that the settings describe."""
        return cls(form.hidden, form.norm_epsilon)

    def rows(self) -> Iterator[Row]:
        yield vector("weight", self.hidden, "ones", per_position=True)
        yield vector("bias", self.hidden, "zeros", per_position=True)

    def kept(self, at: Place) -> Iterator[Kept]:
        yield Kept(2 * at.positions / at.along)  # mean and reciprocal standard deviation


@dataclass(frozen=True)
class RmsNorm(Part):
    """Divides by the root of the mean square, then applies a weight (arXiv 1910.07467)."""

    hidden: int
    epsilon: float

    @classmethod
    def of(cls, form: LayerForm) -> "RmsNorm":
        """The norm that the settings describe."""
        return cls(form.hidden, form.norm_epsilon)

    def rows(self) -> Iterator[Row]:
        yield vector("weight", self.hidden, "ones", per_position=True)

    def kept(self, at: Place) -> Iterator[Kept]:
        yield Kept(at.positions / at.along, "wide")
