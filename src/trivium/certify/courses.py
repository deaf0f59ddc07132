"""Lengths of a certificate's training and its schedules, implemented a second time.

Three steps do not show effects of the step's number: a count that stops growing, keys that repeat, a learning rate that
is wrong after the warm-up. The long course has 64 steps of a thin model with a learning-rate schedule and a loss scale.

Sources of the schedules: linear warm-up, then cosine (MT-NLG, section 3.2), the inverse root of arXiv 1706.03762, or
warm-up, stable, decay of arXiv 2404.06395 (1-sqrt: arXiv 2405.18392).
"""

import math
from dataclasses import dataclass

from trivium.config import Tree
from trivium.training.config import TrainingConfig

STEPS = 3
LONG_STEPS = 64

# The schedules of the long course. Each has a warm-up, and a decay that ends before its last step.
WARMUP_FRACTION, STABLE_FRACTION, END_FRACTION = 0.15, 0.5, 0.9  # shares of the tokens of the course
PEAK_LR, FINAL_FRACTION = 2e-3, 0.1
# The loss scale of the long course doubles after SCALE_GROWTH_STEPS finite steps, up to LARGEST_SCALE.
SCALE_GROWTH_STEPS, LARGEST_SCALE = 7, 2.0**12
OVERFLOWS = (5, 20, 21, 43)  # before these steps, counted from 0, a step overflows and is tried again


@dataclass(frozen=True)
class Course:
    """The length of a training. steps: the least number of steps. scheduled: follow the learning-rate schedules of
    trainings and a loss scale; otherwise the recipe's rates alternate."""

    steps: int
    scheduled: bool = False


SHORT, LONG = Course(STEPS), Course(LONG_STEPS, scheduled=True)


def schedules(tokens: int) -> dict[str, TrainingConfig]:
    """Return a recipe of every kind of decay by name, for a training of `tokens` tokens. The first one trains."""
    warmup, stable, end = (round(share * tokens) for share in (WARMUP_FRACTION, STABLE_FRACTION, END_FRACTION))
    usual: Tree = {"lr": PEAK_LR, "lr_final_fraction": FINAL_FRACTION, "warmup_tokens": warmup}
    final: Tree = {"decay": "wsd", "final_decay_tokens": end - stable, "decay_tokens": end}
    given: dict[str, Tree] = {
        "cosine": {"decay_tokens": end},
        "linear": {"decay": "linear", "decay_tokens": end},
        "cosine to the last step": {"decay_tokens": 0},
        "constant": {"decay": "constant", "lr_final_fraction": 1.0},
        "inverse_sqrt": {"decay": "inverse_sqrt"},
        "wsd, 1-sqrt": {**final, "final_decay_shape": "1-sqrt"},
        "wsd, linear": {**final, "final_decay_shape": "linear"},
    }
    return {name: TrainingConfig(**{**usual, **more}, steps=LONG_STEPS) for name, more in given.items()}


def rate(recipe: TrainingConfig, tokens: int, last: int) -> float:
    """Return the learning rate of the step after which `tokens` tokens are trained. last: tokens of the whole
    training."""
    peak, final = recipe.lr, recipe.lr * recipe.lr_final_fraction
    if tokens < recipe.warmup_tokens:
        return peak / recipe.warmup_tokens * tokens
    if recipe.decay == "constant":
        return peak
    if recipe.decay == "inverse_sqrt":
        return max(final, peak / math.sqrt(tokens / recipe.warmup_tokens))
    end = recipe.decay_tokens if recipe.decay_tokens > 0 else last
    begin = recipe.warmup_tokens
    if recipe.decay == "wsd":
        begin = end - recipe.final_decay_tokens
    if tokens <= begin:
        return peak
    if tokens >= end:
        return final
    x = (tokens - begin) / (end - begin)
    falls = {"cosine": math.sin(math.pi / 2 * x) ** 2, "linear": x, "1-sqrt": math.sqrt(x)}
    return peak - (peak - final) * falls[recipe.final_decay_shape if recipe.decay == "wsd" else recipe.decay]


class PlainScale:
    """The loss scale: halved by an overflow, doubled after SCALE_GROWTH_STEPS finite steps in a row."""

    def __init__(self, value: float) -> None:
        self.value, self.in_a_row = value, 0

    def finite(self) -> None:
        """Count a step with finite gradients."""
        self.in_a_row += 1
        if self.in_a_row % SCALE_GROWTH_STEPS == 0:
            self.value = min(self.value * 2, LARGEST_SCALE)

    def overflowed(self) -> None:
        """Halve the scale after a step whose gradients are not finite."""
        self.value, self.in_a_row = self.value / 2, 0
