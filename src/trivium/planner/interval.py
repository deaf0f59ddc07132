"""The checkpoint interval that minimises the time lost to saving and to failures.

Symbols of the sources: `save` is the time of writing a checkpoint (delta), `mean` the mean time between failures of
the job (M), `restart` the time from a failure until work resumes (R). All are in seconds.

Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974: sqrt(2 delta M).
Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22, 2006: failures come
at a constant rate and may also strike while saving or restarting; equation 37 is the optimum, equation 20 the
expected time.
"""

import math
from dataclasses import dataclass

from trivium.errors import ConfigError

MAX_WASTED_RATIO = 100.0  # times the work
MAX_SECONDS = 1e12  # 30,000 years


@dataclass(frozen=True)
class Interval:
    """Seconds of work between two checkpoints, and the time beyond the work as a fraction of it."""

    young_seconds: float
    daly_seconds: float
    wasted_fraction: float  # with Daly's interval

    def steps(self, step_seconds: float) -> int:
        """Daly's interval in steps, at least one."""
        return max(1, round(self.daly_seconds / step_seconds))


def checkpoint_interval(save: float, mean: float) -> Interval:
    """Both optima, in seconds. A restart takes as long as a save, since as much is read back.

    Raises ConfigError unless both times are above 0 and at most `MAX_SECONDS`, and some work is ever done.
    """
    for name, value in (("the time of a save", save), ("the mean time between failures", mean)):
        if not 0 < value <= MAX_SECONDS:
            raise ConfigError(
                f"{name} is {value:g} s; it must be above 0, and {MAX_SECONDS:g} at most: give what was measured"
            )
    daly = daly_seconds(save, mean)
    wasted = expected_waste(daly, save, mean, restart=save)
    if not wasted < MAX_WASTED_RATIO:
        raise ConfigError(
            f"a save takes {save:g} s and a failure comes every {mean:g} s: a training would take more than "
            f"{MAX_WASTED_RATIO:.0f} times its work; make saves shorter or failures rarer"
        )
    return Interval(young_seconds(save, mean), daly, wasted)


def young_seconds(save: float, mean: float) -> float:
    """Return the optimum if each failure repeats half an interval."""
    return math.sqrt(2 * save * mean)


def daly_seconds(save: float, mean: float) -> float:
    """Return the minimum of `expected_waste`, to the third order in sqrt(save / 2 mean)."""
    if save >= 2 * mean:
        return mean
    ratio = save / (2 * mean)
    return math.sqrt(2 * save * mean) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save


def expected_waste(interval: float, save: float, mean: float, restart: float) -> float:
    """Return the expected additional time as a fraction of the work, with failures at any time. It is infinite if the
    result exceeds the range of a float."""
    exponent = (interval + save) / mean
    if exponent + restart / mean > 700:
        return math.inf
    return mean * math.exp(restart / mean) * math.expm1(exponent) / interval - 1
