"""Dynamic loss scaling for fp16: it keeps small gradients above the smallest number of fp16."""

from dataclasses import dataclass

GROWTH_STEPS = 2000
MIN_SCALE, MAX_SCALE = 1.0, 2.0**24


@dataclass
class LossScale:
    """The factor on the loss, and the number of consecutive finite steps."""

    value: float = 2.0**16
    finite_steps: int = 0

    def update(self, *, finite: bool) -> None:
        """Halve the scale after a step whose gradients overflowed; double it after GROWTH_STEPS that did not."""
        if not finite:
            self.value, self.finite_steps = max(MIN_SCALE, self.value / 2), 0
            return
        self.finite_steps += 1
        if self.finite_steps == GROWTH_STEPS:
            self.value, self.finite_steps = min(MAX_SCALE, self.value * 2), 0
