"""A head whose logits are soft-capped, as in Gemma 2 (arXiv 2408.00118, section 2)."""

from collections.abc import Iterator
from dataclasses import dataclass

from trivium.plan.layers.head import Head
from trivium.plan.layers.part import Kept, Place


@dataclass(frozen=True)
class HeadCapped(Head):
    """cap · tanh(logits / cap)."""

    cap: float = 1.0

    def kept(self, at: Place) -> Iterator[Kept]:
        yield from super().kept(at)
        yield Kept((1 - at.split) * at.positions, "index")  # also kept if the vocabulary is not divided
        yield Kept((1 - at.split) * at.positions, "flag")

    def kept_by_loss(self, at: Place) -> Iterator[Kept]:
        """Yield what cap and cross-entropy keep: capped logits, their exponentials, and two sums a position."""
        yield Kept(2 * at.positions * at.vocabulary / at.tensor)
        yield Kept(2 * at.positions, "wide")
