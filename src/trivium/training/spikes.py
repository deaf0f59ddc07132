"""Detects loss spikes: steps whose loss or gradient norm is not finite, or far above those of recent steps.

Every rank has the same history of the same totals, so all ranks decide the same before any weight changes.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from trivium.parallel.sharding.zero import Totals
from trivium.training.config import SpikesConfig

# The standard deviation of a normal distribution, divided by its median absolute deviation.
SIGMA_PER_DEVIATION = 1.4826


class SpikeWatch:
    """Compares each step with the finite totals of the steps before it.

    cause: why the last step was rejected, or an empty string. in_a_row: how many consecutive steps were rejected.
    """

    def __init__(self, config: SpikesConfig, past: Mapping[str, Any] | None = None) -> None:
        """past: the `state` from a checkpoint."""
        self.config = config
        past = past or {}
        self._losses: deque[float] = deque(past.get("losses", ()), config.window)
        self._norms: deque[float] = deque(past.get("norms", ()), config.window)
        self.in_a_row = int(past.get("in_a_row", 0))
        self.cause = ""

    def accepts(self, totals: Totals) -> bool:
        """Return whether the step may update the weights, and add its totals to the history if it may."""
        self.cause = self._cause(totals)
        if self.cause:
            self.in_a_row += 1
            return False
        self.in_a_row = 0
        self._losses.append(totals.loss)
        self._norms.append(totals.gradient_norm)
        return True

    @property
    def state(self) -> dict[str, Any]:
        """The history as plain data, which a checkpoint keeps."""
        return {"losses": list(self._losses), "norms": list(self._norms), "in_a_row": self.in_a_row}

    def _cause(self, totals: Totals) -> str:
        named = (("loss", totals.loss, self._losses), ("gradient norm", totals.gradient_norm, self._norms))
        for name, value, _ in named:
            if not math.isfinite(value):
                return f"the {name} is {value}"
        for name, value, before in named:
            limit = threshold(before, self.config)
            if value > limit:
                return f"the {name} is {value:.4g}, above {limit:.4g} (median and deviation of {len(before)} steps)"
        return ""


def threshold(before: Sequence[float], config: SpikesConfig) -> float:
    """Return the largest value that is not a spike: median + deviations x robust standard deviation of the last steps.

    It is infinite until there were `window` steps, and if `deviations` is 0.
    """
    if config.deviations == 0 or len(before) < config.window:
        return math.inf
    middle = statistics.median(before)
    spread = SIGMA_PER_DEVIATION * statistics.median(abs(x - middle) for x in before)
    return middle + config.deviations * spread
