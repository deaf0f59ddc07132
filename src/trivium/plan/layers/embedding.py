"""The embedding: token vectors, and learned positions."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trivium.plan.layers.part import Kept, Number, Part, Place, Row
from trivium.plan.layers.positions import Learned


@dataclass(frozen=True)
class Embedding(Part):
    """Token vectors, and learned positions where the model has them."""

    vocabulary: int
    hidden: int
    positions: Learned | None
    rate: float  # dropout rate

    @property
    def drops(self) -> Number:
        """1 where there is dropout, else 0."""
        return np.asarray(self.rate) > 0

    def tokens(self) -> Row:
        """The table of token vectors."""
        return Row("tokens.weight", (self.vocabulary, self.hidden), split=0, padded=True)

    def rows(self) -> Iterator[Row]:
        yield self.tokens()
        if self.positions is not None:
            yield from self.positions.rows()

    def kept(self, at: Place) -> Iterator[Kept]:
        yield Kept(at.positions, "index")
        yield Kept(at.split * at.positions, "flag")  # tokens of other tensor ranks
        yield Kept(self.drops * at.positions * self.hidden / at.along)
        if self.positions is not None:
            yield from self.positions.kept(at)
