"""A head whose logits are multiplied by a constant, as in Granite."""

from collections.abc import Iterator
from dataclasses import dataclass

from trivium.plan.layers.form import LayerForm
from trivium.plan.layers.head import Head


@dataclass(frozen=True)
class HeadScaled(Head):
    """scale · logits."""

    scale: float = 1.0

    @classmethod
    def problems(cls, form: LayerForm) -> Iterator[str]:
        """Yield the contradictions among its settings."""
        if form.logits_scale != 1 and form.logits_cap is not None:
            yield (
                f"plan.model.logits_scale is {form.logits_scale:g} and plan.model.logits_cap is {form.logits_cap:g}, "
                f"and no head has both; set plan.model.logits_scale=1 or plan.model.logits_cap=null"
            )
