"""Halves whose results are multiplied by a constant, as in Granite."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.wiring import Sequential


@dataclass(frozen=True)
class SequentialScaled(Sequential):
    """x + scale · attention(x), then x + scale · feed_forward(x), each with a norm before or after."""

    scale: float = 1.0

    @classmethod
    def of(cls, form: LayerForm) -> "SequentialScaled":
        """The wiring that the settings describe."""
        found = super().of(form)
        assert isinstance(found, cls), f"{found} is of another kind"
        return replace(found, scale=form.residual_scale)

    @classmethod
    def problems(cls, form: LayerForm) -> Iterator[str]:
        """Yield the contradictions among its settings."""
        if form.residual_scale != 1 and form.wiring != "sequential":
            yield (
                f"plan.model.residual_scale is {form.residual_scale:g}, and plan.model.wiring '{form.wiring}' has no "
                f"such scale; set plan.model.wiring=sequential or plan.model.residual_scale=1"
            )
