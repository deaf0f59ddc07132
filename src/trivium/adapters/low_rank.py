"""A product of low rank beside a frozen weight W: y = x W^T + scale (x A^T) B^T (LoRA, arXiv 2106.09685).

Of a layer that is split by its outputs, every tensor rank holds all of A and its own rows of B; of one that is split by
its inputs, its own columns of A and all of B. Either way tensor ranks exchange the `rank` numbers of x A^T for each
position, and nothing else besides the messages of the layer.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from trivium.plan.adapters import Adapter, Linear, Sums
from trivium.plan.layers.part import Kept, Place, Product, Row

if TYPE_CHECKING:
    from torch import Tensor


class LowRank(Adapter):
    """B begins with zeros, so that the adapted model begins as the model itself."""

    rank: Annotated[int, Field(ge=1)] = 8  # rows of A, and columns of B
    scale: Annotated[float, Field(gt=0)] = 1.0

    def rows(self, base: Row) -> Iterator[Row]:
        *outputs, inputs = base.shape
        if base.splits_outputs:
            yield Row("a", (self.rank, inputs), per_position=True)
            yield Row("b", (*outputs, self.rank), base.split, initial="zeros", fused=base.fused)
        else:
            yield Row("a", (self.rank, inputs), 1)
            yield Row("b", (*outputs, self.rank), initial="zeros", per_position=True)

    def products(self, base: Row, at: Place) -> list[Product]:
        """What is computed outside of the tensor region is divided over the ranks that divide the positions there."""
        *outputs, inputs = base.shape
        if base.splits_outputs:
            into = Product(self.rank / at.along, inputs, enters=False)
            return [into, Product(prod(outputs) / at.tensor, self.rank, enters=True)]
        return [
            Product(self.rank, inputs / at.tensor, enters=False),
            Product(prod(outputs) / at.along, self.rank, enters=True),
        ]

    def kept(self, base: Row, at: Place) -> Iterator[Kept]:
        yield Kept(at.positions * self.rank / at.along)  # x A^T

    def sums(self, base: Row) -> Sums:
        return Sums(entering=self.rank) if base.splits_outputs else Sums(leaving=self.rank)

    def adapted(
        self,
        y: "Tensor",
        x: "Tensor",
        linear: Linear,
        added: Mapping[str, Any],
        function: Callable[["Tensor"], "Tensor"] | None,
    ) -> "Tensor":
        region, a, b = linear.region, added["a"], added["b"]
        if linear.splits_outputs:
            more: Tensor = region.column_product(region.linear(x, a), b)
        else:
            more = region.linear(region.row_product(x, a, function), b)
        return y + self.scale * more


ADAPTER = LowRank
