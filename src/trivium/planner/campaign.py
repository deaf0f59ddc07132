"""Steps, hours, energy and cost of a full training, including its batch ramp."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trivium.errors import ConfigError
from trivium.plan.plan import Plan

HOUR = 3600.0


@dataclass(frozen=True)
class Rates:
    """Mean power in watts and price per hour of one device with its share of the node; None if unknown."""

    watts: float | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True)
class Campaign:
    """Costs of training on `tokens` tokens. lost_fraction: additional time for checkpoints and failures."""

    tokens: int
    steps: int
    seconds: float
    devices: int
    lost_fraction: float
    kilowatt_hours: float | None
    price: float | None

    @property
    def hours(self) -> float:
        return self.seconds / HOUR

    @property
    def device_hours(self) -> float:
        return self.hours * self.devices

    def tree(self) -> dict[str, Any]:
        """Return plain data."""
        return {**vars(self), "hours": self.hours, "device_hours": self.device_hours}


def campaign(
    plan: Plan,
    tokens: int,
    step_seconds: Callable[[int], float],
    devices: int,
    *,
    rates: Rates = Rates(),
    lost_fraction: float = 0.0,
) -> Campaign:
    """Return the costs of a training. step_seconds: returns the seconds of a step by its batch size; called once per
    batch size of the ramp."""
    if tokens < 1:
        raise ConfigError(f"--tokens is {tokens}; a training has at least one token: write a number as 270B")
    steps, seconds = 0, 0.0
    for sequences, count in steps_by_batch(plan, tokens):
        steps += count
        seconds += count * step_seconds(sequences)
    seconds *= 1 + lost_fraction
    device_hours = seconds / HOUR * devices
    return Campaign(
        tokens=tokens,
        steps=steps,
        seconds=seconds,
        devices=devices,
        lost_fraction=lost_fraction,
        kilowatt_hours=None if rates.watts is None else rates.watts / 1000 * device_hours,
        price=None if rates.price_per_hour is None else rates.price_per_hour * device_hours,
    )


def steps_by_batch(plan: Plan, tokens: int) -> list[tuple[int, int]]:
    """Return pairs (batch size, number of steps) until `tokens` tokens are trained on."""
    total = plan.batch.steps_for(-(-tokens // plan.model.sequence))
    segments = [s for s in plan.batch.segments if s.first_step < total]
    ends = [*(s.first_step for s in segments[1:]), total]
    return [(s.sequences, end - s.first_step) for s, end in zip(segments, ends, strict=True)]
