"""Dynamic loss scaling for fp16: keep small gradients above the smallest number that fp16 can hold."""

from dataclasses import dataclass

GROWTH_STEPS = 2000
LEAST, LARGEST = 1.0, 2.0**24


@dataclass
class LossScale:
    """The factor on the loss, and how many steps in a row were finite."""

    value: float = 2.0**16
    finite_steps: int = 0

    def update(self, *, finite: bool) -> None:
        """Halve after a step whose gradients overflowed (it is skipped); double after many that did not."""
        if not finite:
            self.value, self.finite_steps = max(LEAST, self.value / 2), 0
            return
        self.finite_steps += 1
        if self.finite_steps == GROWTH_STEPS:
            self.value, self.finite_steps = min(LARGEST, self.value * 2), 0
