"""What the search may vary."""

from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config, Positive
from trivium.cost.hardware import USABLE
from trivium.plan.schedule import ScheduleName

Named = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "1f1b-split"]


class SearchSpace(Config):
    """Every combination is a candidate, if the plan is legal. Degrees are all that multiply to the ranks.

    gpipe is left out by default: it takes as long as 1f1b and holds more.
    """

    micro: tuple[Positive, ...] = (1, 2, 4, 8, 16)  # sequences per micro-batch
    context: tuple[Positive, ...] = (1, 2, 4, 8)  # ranks that share a sequence
    schedules: tuple[Named, ...] = ("1f1b", "1f1b-split", "interleaved", "zb-h1", "zb-v")
    chunks: tuple[Positive, ...] | None = None  # stages per rank when interleaved; None: every legal number
    recompute: tuple[Literal["none", "attention", "layer"], ...] = ("none", "attention", "layer")
    recompute_every: tuple[Positive, ...] = (1, 2, 3, 4, 8)  # of layers: the largest with which a plan fits
    activation_function: bool = True  # may be computed again by plans that hold too much otherwise
    zero: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)
    shards: tuple[Annotated[int, Field(ge=2)] | None, ...] = (
        None,
    )  # ranks that share one copy; null: all replicas
    sequence_parallel: tuple[bool, ...] = (False, True)
    finalists: Positive = 50  # how many of the fastest are simulated action by action
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = USABLE  # of a device's memory

    def chunks_for(self, name: ScheduleName, layers: int) -> tuple[int, ...]:
        """Stages per rank that a schedule may have with a model of so many layers."""
        if name == "interleaved":
            return self.chunks if self.chunks is not None else tuple(range(2, layers // 2 + 1))
        return (2,) if name == "zb-v" else (1,)
