"""What the search may vary."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config
from trivium.plan.schedule import ScheduleName

Positive = Annotated[int, Field(ge=1)]


class SearchSpace(Config):
    """Every combination is a candidate, if the plan is legal.

    gpipe is left out by default: it takes as long as 1f1b and holds more. So are ZeRO stages 2 and 3, which with
    a pipeline send gradients and weights once per micro-batch.
    """

    micro: tuple[Positive, ...] = (1, 2, 4, 8)  # sequences per micro-batch
    schedules: tuple[ScheduleName, ...] = ("1f1b", "interleaved")
    chunks: tuple[Positive, ...] = (2, 3, 4)  # stages per rank of an interleaved schedule
    recompute: tuple[Literal["none", "attention", "layer"], ...] = ("none", "attention", "layer")
    zero: tuple[Literal[0, 1, 2, 3], ...] = (1,)
    sequence_parallel: tuple[bool, ...] = (False, True)
    finalists: Positive = 20  # how many of the fastest are simulated action by action
