"""The head: the last norm, the product with the table of outputs, and the cross-entropy."""

from collections.abc import Iterator
from dataclasses import dataclass

from trivium.plan.layers.part import Kept, Part, Place, Product, Row, under


@dataclass(frozen=True)
class Head(Part):
    """The last norm, the product with the table of outputs, and the cross-entropy."""

    norm: Part
    vocabulary: int
    hidden: int
    tied: bool

    def rows(self) -> Iterator[Row]:
        yield from under("norm", self.norm.rows())
        if not self.tied:
            yield Row("weight", (self.vocabulary, self.hidden), split=0, padded=True)

    def products(self, at: Place) -> list[Product]:
        return [Product(at.vocabulary / at.tensor, self.hidden, enters=True)]

    def kept(self, at: Place) -> Iterator[Kept]:
        yield Kept(2 * at.positions * self.hidden / at.along)  # what the norm reads, and the product
        yield from self.norm.kept(at)
        yield Kept(at.split * at.positions, "index")
        yield Kept(at.split * at.positions, "flag")
        yield Kept(at.positions, "wide")  # weights of the targets

    def kept_by_loss(self, at: Place) -> Iterator[Kept]:
        """Yield what the cross-entropy keeps: the gradient of the logits where a rank has the whole vocabulary, else
        their exponentials, with two sums for each position."""
        yield Kept(at.positions * at.vocabulary / at.tensor)
        yield Kept(2 * at.split * at.positions, "wide")
