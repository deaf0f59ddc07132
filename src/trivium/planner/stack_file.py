"""A file with the calibration factor of a finished run: measured over predicted seconds per step."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar

import numpy as np
import yaml
from pydantic import Field, ValidationInfo, field_validator

from trivium.config import Config, build_named, to_tree, tree_of_file
from trivium.errors import DataError

MIN_STEPS = 5  # to learn a factor from
WARMUP_STEPS = 2  # the first of a run, which are skipped
Times = Annotated[float, Field(ge=1e-6, le=1e6)]  # far from what any run can teach


class LearnedStack(Config):
    """factor: median of measured over predicted seconds per step; low and high: its quartiles over `steps` steps."""

    remedy: ClassVar[str] = "give it in the file"

    factor: Times
    low: Times
    high: Times
    steps: Annotated[int, Field(ge=1)]
    machine: str
    run: str
    date: str

    @field_validator("low", "high")
    @classmethod
    def _quartile(cls, value: float, info: ValidationInfo) -> float:
        factor = info.data.get("factor", value)  # absent if it is wrong itself
        if value > factor if info.field_name == "low" else value < factor:
            bound = "most" if info.field_name == "low" else "least"
            raise ValueError(
                f"this quartile must be at {bound} the factor, {factor:g}, which is the median; write the file again "
                f"with `trivium plan probe --run DIR --out FILE`"
            )
        return value

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a fraction of the factor."""
        return (self.high - self.low) / 2 / self.factor


def learn(
    metrics: Iterable[Mapping[str, Any]], predicted: Callable[[int], float], *, machine: str, run: str
) -> LearnedStack:
    """Return the factor of a run from its metrics. predicted: returns the seconds of a step by its batch size.

    Each step is compared with the prediction for its own batch size. The median is robust to steps that other processes
    slowed down. Raises DataError if there are too few steps.
    """
    steps = [m for m in metrics if m.get("seconds") and m.get("sequences")][WARMUP_STEPS:]
    if len(steps) < MIN_STEPS:
        raise DataError(
            f"{run}: metrics of {len(steps)} steps after the first {WARMUP_STEPS}; a factor needs at least "
            f"{MIN_STEPS}: train longer"
        )
    seconds = {n: predicted(n) for n in {int(m["sequences"]) for m in steps}}
    ratios = [float(m["seconds"]) / seconds[int(m["sequences"])] for m in steps]
    low, high = np.quantile(ratios, (0.25, 0.75))
    return LearnedStack(
        factor=median(ratios),
        low=float(low),
        high=float(high),
        steps=len(ratios),
        machine=machine,
        run=run,
        date=datetime.now(UTC).date().isoformat(),
    )


def write_stack(path: Path, stack: LearnedStack) -> None:
    """Write the factor as YAML."""
    path.write_text(yaml.safe_dump(to_tree(stack), sort_keys=False), encoding="utf-8")


def read_stack(path: Path) -> LearnedStack:
    """Read a file of `write_stack`. Raises ConfigError if it is invalid."""
    tree = tree_of_file(path, f"stack file {path}", "write it with `trivium plan probe --run DIR`")
    return build_named(LearnedStack, tree, str(path))
