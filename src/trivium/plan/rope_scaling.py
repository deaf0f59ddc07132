"""Frequency scaling of rotary positions, for a model that reads longer sequences than it was first trained on."""

import math
from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config, Positive

Kind = Literal["linear", "llama3", "yarn"]
Above0 = Annotated[float, Field(gt=0)]

NEEDED = {"linear": (), "llama3": ("original", "slow", "fast"), "yarn": ("original", "slow", "fast")}
UNKNOWN = {
    "linear": ("original", "slow", "fast", "attention", "mscale_all_dim"),
    "llama3": ("attention", "mscale_all_dim"),
    "yarn": (),
}


class RopeScaling(Config):
    """Scaling of the rotation frequencies of pairs of columns.

    "linear": all frequencies are divided by `factor` (arXiv 2306.15595). "llama3" and "yarn": a pair that turns less
    than `slow` times over the `original` positions is divided by `factor`, one that turns more than `fast` times is
    unchanged, and those between are divided in part, by the number of their turns ("llama3", arXiv 2407.21783) or by
    their place among the pairs ("yarn", arXiv 2309.00071). "yarn" also multiplies sines and cosines by `attention`, and
    scores by (0.1 mscale_all_dim ln(factor) + 1)² where that is given (DeepSeek-V2).
    """

    kind: Kind  # formula of the scaling
    factor: Above0  # factor by which frequencies are divided
    original: Positive | None = None  # llama3, yarn: sequence length of the first training
    slow: Above0 | None = None  # llama3, yarn: pairs with fewer turns over `original` are scaled in full
    fast: Above0 | None = None  # llama3, yarn: pairs with more turns over `original` are unchanged
    attention: Above0 | None = None  # yarn: factor of sines and cosines; None: 0.1 ln(factor) + 1, at least 1
    mscale_all_dim: Above0 | None = None  # yarn: by how much scores grow with the factor; None: they do not

    @property
    def factor_of_scores(self) -> float:
        """The factor of attention scores, beside 1 / sqrt(columns of a head)."""
        if self.mscale_all_dim is None or self.factor <= 1:
            return 1.0
        return (0.1 * self.mscale_all_dim * math.log(self.factor) + 1) ** 2

    def problems(self, base: float) -> list[str]:
        """Contradictions inside, and with `base`, the model's rope_base."""
        at, found = "plan.model.rope_scaling", []
        for name in UNKNOWN[self.kind]:
            if getattr(self, name) is not None:
                found.append(f"{at}.{name} is {getattr(self, name)}, and kind '{self.kind}' has none; leave it out")
        missing = [name for name in NEEDED[self.kind] if getattr(self, name) is None]
        if missing:
            return [*found, f"{at}.{' and .'.join(missing)} must be given for kind '{self.kind}'"]
        if self.slow is not None and self.fast is not None and self.slow >= self.fast:
            found.append(f"{at}.slow ({self.slow:g} turns) must be below {at}.fast ({self.fast:g} turns)")
        if self.kind == "yarn" and base <= 1:
            found.append(f"plan.model.rope_base ({base:g}) must be above 1 for {at}.kind 'yarn'")
        return found
