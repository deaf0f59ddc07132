"""Lion (Chen et al., arXiv 2302.06675): the sign of an interpolated momentum."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trivium.optim.rule import Decay, Rule, State

if TYPE_CHECKING:
    from torch import Tensor


class Lion(Rule):
    """It keeps one state for each parameter, and wants a learning rate 3 to 10 times smaller than AdamW's."""

    beta1: Decay = 0.9
    beta2: Decay = 0.99

    states = (State("momentum"),)

    def direction(self, gradient: "Tensor", states: Mapping[str, "Tensor"], step: int) -> "Tensor":
        """Return the sign of the momentum moved towards the gradient by 1 - beta1."""
        momentum = states["momentum"]
        sign = momentum.lerp(gradient, 1 - self.beta1).sign_()
        momentum.lerp_(gradient, 1 - self.beta2)
        return sign


RULE = Lion
