"""AdamW (Loshchilov and Hutter, arXiv 1711.05101). Devices run it fused, as `kernels/adamw.py` has it."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trivium.optim.rule import Decay, Rule, State

if TYPE_CHECKING:
    from torch import Tensor


class AdamW(Rule):
    """The first moment over the root of the second, each corrected for its start at zero."""

    beta1: Decay = 0.9
    beta2: Decay = 0.95
    epsilon: Annotated[float, Field(ge=1e-30)] = 1e-8  # fp32 rounds smaller numbers to 0

    states = (State("moment1"), State("moment2"))

    def direction(self, gradient: "Tensor", states: Mapping[str, "Tensor"], step: int) -> "Tensor":
        """Return the corrected first moment over the root of the corrected second."""
        first = states["moment1"].lerp_(gradient, 1 - self.beta1)
        second = states["moment2"].mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        root = second.sqrt().div_(math.sqrt(1 - self.beta2**step)).add_(self.epsilon)
        return first.div(root.mul_(1 - self.beta1**step))


RULE = AdamW
