"""Norms before and after each half, as in Gemma 2 (arXiv 2408.00118, section 2)."""

from collections.abc import Iterator
from dataclasses import dataclass

from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.part import Kept, Moved, Place
from trivium.plan.layers.wiring import Sequential


@dataclass(frozen=True)
class Sandwich(Sequential):
    """x + after_norm(attention(norm(x))), then x + after_norm(feed_forward(norm(x)))."""

    @classmethod
    def problems(cls, form: LayerForm) -> Iterator[str]:
        """Yield the contradictions among its settings."""
        if form.norm_position != "before":
            yield (
                f"plan.model.norm_position is '{form.norm_position}', and plan.model.wiring 'sandwich' has norms "
                f"before and after both halves; set plan.model.norm_position=before"
            )

    def norms_of(self, half: str) -> tuple[str, ...]:
        """The names of the norms of a half."""
        return ("norm", "after_norm")

    @property
    def reads_last_product(self) -> bool:
        """Whether the backward needs what the last product of the layer wrote."""
        return True

    @property
    def norm_reads_last_product(self) -> bool:
        """Whether a norm reads what the last product of the layer wrote."""
        return True

    def moved(self, at: Place) -> Moved:
        """Four norms, and two sums with dropout."""
        stream = at.positions * self.hidden / at.along
        return Moved(30.0 * stream, 40.0 * stream)

    def kept(self, at: Place) -> Iterator[Kept]:
        stream = at.positions * self.hidden / at.along
        yield Kept(6 * stream)  # what four norms and two halves read
        yield Kept(self.drops * 2 * stream)
