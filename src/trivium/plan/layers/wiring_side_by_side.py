"""Attention and the feed-forward half side by side, as in GPT-NeoX (arXiv 2204.06745, section 2.1)."""

from collections.abc import Iterator
from dataclasses import dataclass

from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.part import Kept, Moved, Place
from trivium.plan.layers.wiring import Sequential


@dataclass(frozen=True)
class SideBySide(Sequential):
    """x + attention(norm(x)) + feed_forward(norm(x)), with a norm before each half."""

    @classmethod
    def problems(cls, form: LayerForm) -> Iterator[str]:
        """Yield the contradictions among its settings."""
        if form.norm_position != "before":
            yield (
                f"plan.model.norm_position is '{form.norm_position}', and plan.model.wiring 'side_by_side' has its "
                f"norms before both halves; set plan.model.norm_position=before"
            )

    def moved(self, at: Place) -> Moved:
        """Two norms, and one sum of three with dropout."""
        stream = at.positions * self.hidden / at.along
        return Moved(20.0 * stream, 26.0 * stream)

    def kept(self, at: Place) -> Iterator[Kept]:
        stream = at.positions * self.hidden / at.along
        yield Kept(3 * stream)  # what both norms read, and what each half reads
        yield Kept(self.drops * 2 * stream)
