"""DoRA (arXiv 2402.09353): W' = m (W + s B A) / ‖W + s B A‖, with the norm of each row and a trained magnitude m.

The norm is a constant in the backward (section 4.3 of the paper). Each forward computes it of the whole matrix. Of a
layer that is split by its inputs, tensor ranks sum the squares of their columns, one number for each output. Dropout
acts on the inputs of A alone.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from trivium.adapters.lora import Lora, added_product
from trivium.errors import ConfigError
from trivium.plan.adapters import Linear, Reads, Sums
from trivium.plan.layers.part import Kept, Place, Row

if TYPE_CHECKING:
    from torch import Tensor


class Dora(Lora):
    """LoRA with a magnitude for each output, which begins as the norm of the row of W."""

    def rows(self, base: Row) -> Iterator[Row]:
        yield from super().rows(base)
        outputs = base.shape[:-1]
        if base.splits_outputs:
            yield Row("m", outputs, base.split, decay=False, initial="row_norms", fused=base.fused)
        else:
            inside = base.inside
            yield Row("m", outputs, decay=False, initial="row_norms", summed=inside, per_position=not inside)

    def kept(self, base: Row, at: Place) -> Iterator[Kept]:
        yield from super().kept(base, at)
        outputs = prod(base.shape[:-1])
        here = outputs / at.tensor if base.splits_outputs else outputs
        parts = at.tensor if base.splits_outputs else 1 if base.inside else at.along
        yield Kept(at.positions * outputs / parts)  # what c multiplies
        yield Kept(2 * here)  # the norm, and c - 1

    @property
    def of_experts(self) -> bool:
        return False

    def sums(self, base: Row) -> Sums:
        found = super().sums(base)
        return found._replace(for_weights=prod(base.shape[:-1])) if base.splits_inputs else found

    def adapted(self, y: "Tensor", reads: Reads, linear: Linear, added: Mapping[str, Any]) -> "Tensor":
        weight, (a, b) = linear.weight.detach(), (added[name].detach() for name in "ab")
        squares = linear.region.square_sums(weight + self.difference(weight, {"a": a, "b": b}))
        squares = linear.region.summed(squares) if linear.splits_inputs else squares
        c = (added["m"] / squares.sqrt().to(weight.dtype)).flatten()
        more = self.scale * added_product(reads, linear, added)
        unbiased = y if reads.bias is None else y - reads.bias.flatten()
        # In this form it is the base's own result, to the bit, as long as B is 0.
        found: Tensor = y + (c - 1) * (unbiased + more) + more
        return found

    def merged(self, weight: "Tensor", added: Mapping[str, Any]) -> "Tensor":
        whole = super().merged(weight, added)
        found: Tensor = (added["m"] / whole.square().sum(-1).sqrt()).unsqueeze(-1) * whole
        return found

    def unmerged(self, weight: "Tensor", added: Mapping[str, Any]) -> "Tensor":
        raise ConfigError(
            "plan.model.adapters has the kind 'dora', whose merged weights no longer tell the norms of the base's "
            "rows; keep the base, which cannot be made of them"
        )


ADAPTER = Dora
