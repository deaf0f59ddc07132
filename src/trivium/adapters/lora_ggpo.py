"""LoRA-GGPO (arXiv 2502.14538 v1), as kohya-ss/sd-scripts#1974: LoRA whose layers have noise in training, led by the
norms of weights and gradients.

Row i of the n rows of a layer's weight has the noise E_i ~ N(0, I) (σ w_i + β g_i^p) / sqrt(n) with p = 2, drawn once
for each step by the names of step and layer. w_i is the norm of row i of W + s B A, and g_i that of the first-order
gradient s (B dA + dB A) of the previous step, after clipping. The layer computes with W + E, whose gradient is that of
W; the first step, evaluation and generation have no noise. Each expert has its own weight of n rows, and its number is
one more name.

The repository that the paper names could not be had, and ports differ. As in #1974, p is 2; others have p = 1. Unlike
#1974, w_i is computed and not sampled, s is not left out of it, and gradients of inputs pass through E. A matrix that
is stored for several, such as queries, keys and values, is one matrix with all their rows. LoRA-MGPO, which later
versions of the paper describe, is another method.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod, sqrt
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from trivium.adapters.lora import Lora
from trivium.plan.adapters import Linear, Sums
from trivium.plan.layers.part import Kept, Number, Place, Row

if TYPE_CHECKING:
    from torch import Tensor

EXPONENT = 2  # p, of the norm of the gradient


class LoraGgpo(Lora):
    """LoRA with noise. With sigma and beta 0 it is LoRA, to the bit."""

    sigma: Annotated[float, Field(ge=0)] = 0.03  # factor of the norms of weights
    beta: Annotated[float, Field(ge=0)] = 0.01  # factor of the squared norms of gradients

    @property
    def is_noisy(self) -> bool:
        """Whether there is any noise."""
        return self.sigma > 0 or self.beta > 0

    @property
    def draws(self) -> bool:
        return self.is_noisy or super().draws

    @property
    def remembers(self) -> bool:
        return self.is_noisy

    @property
    def reads_weight(self) -> bool:
        return self.is_noisy

    def rows(self, base: Row) -> Iterator[Row]:
        """The deviation of the noise of each row follows from the previous step, and is kept in checkpoints."""
        yield from super().rows(base)
        split = base.split if base.splits_outputs else None
        yield Row("deviation", base.shape[:-1], split, decay=False, initial="zeros", trainable=False)

    def kept(self, base: Row, at: Place, rows: Number, experts: Number | None) -> Iterator[Kept]:
        yield from super().kept(base, at, rows, experts)
        if self.is_noisy:
            here = prod(base.shape) / (1 if base.split is None else at.tensor)
            yield Kept(here * (1 if experts is None else experts))  # W + E

    def sums(self, base: Row) -> Sums:
        sums = self.is_noisy and base.splits_inputs
        return super().sums(base)._replace(remembered=2 * prod(base.shape[:-1]) if sums else 0)

    def weight(self, weight: "Tensor", added: Mapping[str, Any], normal: Callable[[], "Tensor"] | None) -> "Tensor":
        if normal is None or not self.is_noisy:
            return weight
        noise: Tensor = added["deviation"].detach().unsqueeze(-1) * normal()
        return weight + noise

    def remembered(
        self, base: Row, linear: Linear, added: Mapping[str, Any], gradients: Mapping[str, Any]
    ) -> dict[str, "Tensor"]:
        wide = gradients["a"].dtype
        weight, a, b = (each.to(wide) for each in (linear.weight, added["a"], added["b"]))
        change = self.difference(weight, {"a": gradients["a"], "b": b})
        change = change + self.difference(weight, {"a": a, "b": gradients["b"]})
        region = linear.region
        squares = [region.square_sums(weight + self.difference(weight, {"a": a, "b": b})), region.square_sums(change)]
        if linear.splits_inputs:
            squares = [region.summed(each) for each in squares]
        w, g = (each.sqrt() for each in squares)
        return {"deviation": (self.sigma * w + self.beta * g**EXPONENT) / sqrt(prod(base.shape[:-1]))}


ADAPTER = LoraGgpo
