"""RMSNorm whose weight is an offset from 1, as in Gemma."""

from collections.abc import Iterator
from dataclasses import dataclass

from trivium.plan.layers.norms import RmsNorm
from trivium.plan.layers.part import Kept, Place, Row, vector


@dataclass(frozen=True)
class RmsNormOffset(RmsNorm):
    """Divides by the root of the mean square, then multiplies by 1 + weight."""

    def rows(self) -> Iterator[Row]:
        yield vector("weight", self.hidden, "zeros", per_position=True)

    def kept(self, at: Place) -> Iterator[Kept]:
        yield from super().kept(at)
        yield Kept(self.hidden, "wide")  # 1 + weight
