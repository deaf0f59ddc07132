"""What one finished run teaches: how much longer a step takes than predicted, kept in a file that estimates read."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar

import numpy as np
import yaml
from pydantic import Field

from trivium.config import Config, build_named, to_tree, tree_of_file
from trivium.errors import DataError

FEWEST = 5  # steps that a factor is learned from
WARM = 2  # first steps of a run that are left out; those after a resume are too few to move a median
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

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a fraction of the factor."""
        return (self.high - self.low) / 2 / self.factor


def learn(
    metrics: Iterable[Mapping[str, Any]], predicted: Callable[[int], float], *, machine: str, run: str
) -> LearnedStack:
    """The factor of a run from its metrics. predicted: seconds of a step of so many sequences.

    Every step counts once, against the prediction for its own batch; the median is deaf to steps that something
    else on the machine held up. Raises DataError when there are too few.
    """
    steps = [m for m in metrics if m.get("seconds") and m.get("sequences")][WARM:]
    if len(steps) < FEWEST:
        raise DataError(
            f"{run}: metrics of {len(steps)} steps after the first {WARM}; a factor needs at least {FEWEST}: train "
            f"longer"
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
    """As YAML."""
    path.write_text(yaml.safe_dump(to_tree(stack), sort_keys=False), encoding="utf-8")


def read_stack(path: Path) -> LearnedStack:
    """What `write_stack` wrote. Raises ConfigError that names what is wrong."""
    tree = tree_of_file(path, f"stack file {path}", "write it with `trivium plan calibrate`")
    return build_named(LearnedStack, tree, str(path))
