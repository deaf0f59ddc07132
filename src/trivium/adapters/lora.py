"""LoRA (arXiv 2106.09685): y = x W^T + s (x A^T) B^T beside a frozen weight W, with s = alpha / r.

rsLoRA (arXiv 2312.03732) has s = alpha / sqrt(r). Dropout acts on the inputs of A alone, in training.

Of a layer that is split by its outputs, every tensor rank holds all of A and its own rows of B; of one that is split by
its inputs, its own columns of A and all of B. Either way tensor ranks exchange the r numbers of x A^T for each
position, and nothing else besides the messages of the layer. Of a layer outside of the tensor region, every rank holds
all of both, and nothing is exchanged. Nothing is either for a layer inside of the region, such as that of an expert:
its messages cover what is added, and the gradients of what every rank holds are summed at the end of the step.
"""

from collections.abc import Iterator, Mapping
from math import prod, sqrt
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from trivium.plan.adapters import Adapter, Factors, Linear, Reads, Sums
from trivium.plan.layers.part import Kept, Number, Place, Product, Row

if TYPE_CHECKING:
    from torch import Tensor


class Lora(Adapter):
    """A begins uniform in ±1 / sqrt(inputs), which is Kaiming's with a = sqrt(5). B begins with zeros, so that the
    adapted model begins as the model itself."""

    r: Annotated[int, Field(ge=1)] = 16  # rank: rows of A, and columns of B
    alpha: Annotated[float, Field(gt=0)] = 32.0
    rslora: bool = False  # whether the scale is alpha / sqrt(r) instead of alpha / r
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of the inputs of A that training zeroes

    @property
    def scale(self) -> float:
        """The factor s of the added product."""
        return self.alpha / (sqrt(self.r) if self.rslora else self.r)

    def rows(self, base: Row) -> Iterator[Row]:
        *outputs, inputs = base.shape
        # what every tensor rank holds
        whole: dict[str, Any] = {"summed": True} if base.inside else {"per_position": True}
        of_a: dict[str, Any] = {"split": 1} if base.splits_inputs else whole
        of_b: dict[str, Any] = {"split": base.split, "fused": base.fused} if base.splits_outputs else whole
        yield Row("a", (self.r, inputs), initial="uniform", **of_a)
        yield Row("b", (*outputs, self.r), initial="zeros", **of_b)

    def products(self, base: Row, at: Place) -> list[Product]:
        """What is computed outside of the tensor region is divided over the ranks that divide the positions there."""
        *outputs, inputs = base.shape
        if base.inside:
            out = Product(prod(outputs) / (at.tensor if base.splits_outputs else 1), self.r, enters=False)
            return [Product(self.r, inputs / (at.tensor if base.splits_inputs else 1), enters=False), out]
        if base.splits_outputs:
            into = Product(self.r / at.along, inputs, enters=False)
            return [into, Product(prod(outputs) / at.tensor, self.r, enters=True)]
        out = Product(prod(outputs) / at.along, self.r, enters=True)
        if base.splits_inputs:
            return [Product(self.r, inputs / at.tensor, enters=False), out]
        return [Product(self.r / at.along, inputs, enters=True), out]

    def kept(self, base: Row, at: Place, rows: Number, experts: Number | None) -> Iterator[Kept]:
        yield Kept(rows * self.r / (1 if base.inside else at.along))  # x A^T

    def sums(self, base: Row) -> Sums:
        if base.inside:
            return Sums()
        return Sums(entering=self.r * base.splits_outputs, leaving=self.r * base.splits_inputs)

    def factors(self, linear: Linear, added: Mapping[str, Any]) -> Factors:
        return Factors(added["a"], added["b"], self.scale)

    def adapted(self, y: "Tensor", reads: Reads, linear: Linear, added: Mapping[str, Any]) -> "Tensor":
        return y + self.scale * added_product(reads, linear, added)

    def merged(self, weight: "Tensor", added: Mapping[str, Any]) -> "Tensor":
        return weight + self.difference(weight, added)

    def unmerged(self, weight: "Tensor", added: Mapping[str, Any]) -> "Tensor":
        return weight - self.difference(weight, added)

    def difference(self, weight: "Tensor", added: Mapping[str, Any]) -> "Tensor":
        """Return s B A in the shape of the weight."""
        a, b = added["a"], added["b"]
        flat: Tensor = b.flatten(a.dim() - 2, -2) @ a
        return self.scale * flat.view(weight.shape)


def added_product(reads: Reads, linear: Linear, added: Mapping[str, Any]) -> "Tensor":
    """Return (x A^T) B^T, in the shape of the result of the layer."""
    region, a, b = linear.region, added["a"], added["b"]
    if linear.inside:
        found: Tensor = region.linear(region.linear(reads.x, a, function=reads.dropped), b)
    elif linear.splits_outputs:
        found = region.column_product(region.linear(reads.x, a, function=reads.dropped), b)
    elif linear.splits_inputs:
        found = region.linear(region.row_product(reads.x, a, reads.dropped), b)
    else:
        found = region.linear(region.linear(reads.x, a, function=reads.dropped), b)
    return found


ADAPTER = Lora
