"""The z-loss keeps the logarithm of each token's sum of exponentials near 0 (PaLM, arXiv 2204.02311, section 5; OLMo 2,
arXiv 2501.00656)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trivium.objectives.objective import Term
from trivium.plan.model_shape import ModelShape

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ZLoss(Term):
    """The square of the logarithm, times a coefficient."""

    name: ClassVar[str] = "z_loss"
    coefficient: float

    def value(self, logs: "Tensor") -> "Tensor":
        return self.coefficient * logs.square()

    def slope(self, logs: "Tensor") -> "Tensor":
        return 2 * self.coefficient * logs

    def __str__(self) -> str:
        return f"z-loss {self.coefficient:g}"


def term_of(model: ModelShape) -> ZLoss | None:
    """Return the z-loss of a model that has one."""
    return ZLoss(model.z_loss) if model.z_loss else None
