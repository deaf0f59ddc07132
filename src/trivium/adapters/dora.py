"""DoRA (arXiv 2402.09353): W' = m (W + s B A) / ‖W + s B A‖, with the norm of each row and a trained magnitude m.

The norm is a constant in the backward (section 4.3 of the paper). Each forward computes it of the whole matrix. Of a
layer that is split by its inputs, tensor ranks sum the squares of their columns, one number for each output. Dropout
acts on the inputs of A alone. Beside experts the factors c = m / ‖W + s B A‖ multiply the results of each expert.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from trivium.adapters.lora import Lora, added_product
from trivium.errors import ConfigError
from trivium.plan.adapters import Factors, Linear, Reads, Sums
from trivium.plan.layers.part import Kept, Number, Place, Row

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

    def kept(self, base: Row, at: Place, rows: Number, experts: Number | None) -> Iterator[Kept]:
        yield from super().kept(base, at, rows, experts)
        outputs = prod(base.shape[:-1])
        here = outputs / at.tensor if base.splits_outputs else outputs
        parts = at.tensor if base.splits_outputs else 1 if base.inside else at.along
        # Experts keep what c multiplies instead of the inputs of the activation function, which are its product.
        if experts is None or base.splits_inputs:
            yield Kept(rows * outputs / parts)
        yield Kept(2 * here * (1 if experts is None else experts))  # the norm, and c - 1 or c

    @property
    def reads_weight(self) -> bool:
        return True

    def sums(self, base: Row) -> Sums:
        found = super().sums(base)
        return found._replace(for_weights=prod(base.shape[:-1])) if base.splits_inputs else found

    def factors(self, linear: Linear, added: Mapping[str, Any]) -> Factors:
        from torch import stack

        experts = zip(*(x.detach() for x in (linear.weight, added["a"], added["b"])), strict=True)
        # One expert after the other, so that there is never a copy of all matrices.
        squares = stack([linear.region.square_sums(self._whole(*matrices)) for matrices in experts])
        return super().factors(linear, added)._replace(outputs=_c(squares, linear, added).flatten(1))

    def adapted(self, y: "Tensor", reads: Reads, linear: Linear, added: Mapping[str, Any]) -> "Tensor":
        squares = linear.region.square_sums(self._whole(*(x.detach() for x in (linear.weight, added["a"], added["b"]))))
        c = _c(squares, linear, added).flatten()
        more = self.scale * added_product(reads, linear, added)
        unbiased = y if reads.bias is None else y - reads.bias.flatten()
        # In this form it is the base's own result, to the bit, as long as B is 0.
        found: Tensor = y + (c - 1) * (unbiased + more) + more
        return found

    def _whole(self, weight: "Tensor", a: "Tensor", b: "Tensor") -> "Tensor":
        return weight + self.difference(weight, {"a": a, "b": b})

    def merged(self, weight: "Tensor", added: Mapping[str, Any]) -> "Tensor":
        whole = super().merged(weight, added)
        found: Tensor = (added["m"] / whole.square().sum(-1).sqrt()).unsqueeze(-1) * whole
        return found

    def unmerged(self, weight: "Tensor", added: Mapping[str, Any]) -> "Tensor":
        raise ConfigError(
            "plan.model.adapters has the kind 'dora', whose merged weights no longer tell the norms of the base's "
            "rows; keep the base, which cannot be made of them"
        )


def _c(squares: "Tensor", linear: Linear, added: Mapping[str, Any]) -> "Tensor":
    """Return m / ‖W + s B A‖ in the shape of m, of the sums of the squares of rows here."""
    whole = linear.region.summed(squares) if linear.splits_inputs else squares
    found: Tensor = added["m"] / whole.sqrt().to(linear.weight.dtype)
    return found


ADAPTER = Dora
