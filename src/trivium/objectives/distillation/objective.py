"""Distillation from stored log-probabilities of a teacher (arXiv 1503.02531)."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from trivium.config import Positive
from trivium.objectives.objective import LOSS, Objective
from trivium.plan.model_shape import ModelShape

CROSS_ENTROPY, DIVERGENCE = "cross_entropy", "divergence"  # among the losses of a step


class Distillation(Objective):
    """The cross-entropy times 1 - share, and temperature² KL(teacher || student) times share.

    Both distributions are those at the temperature. They are compared over the `top` likeliest tokens of the teacher,
    and one more class for all the others.
    """

    temperature: Annotated[float, Field(gt=0)] = 1.0  # divides the logits of both
    top: Positive = 64  # tokens whose log-probabilities the teacher stores for each target
    share: Annotated[float, Field(ge=0, le=1)] = 0.5  # of the divergence in the loss
    teacher: str | None = None  # sha256 of its weights; None: of those that computed what is beside the tokens

    def names(self, model: ModelShape) -> tuple[str, ...]:
        return (LOSS, CROSS_ENTROPY, DIVERGENCE)

    @property
    def stored(self) -> Mapping[str, float]:
        """The settings on which the stored numbers depend."""
        return {"temperature": self.temperature, "top": self.top}
