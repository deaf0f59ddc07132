"""What the search may vary."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from trivium.config import Config, Positive, Short
from trivium.cost.hardware import USABLE
from trivium.plan.schedule import ScheduleName
from trivium.plan.sizes import MAX_PLAN_RANKS, Degree, Sequences

Named = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "1f1b-split"]
Degrees = tuple[Degree, ...] | None
Shards = Annotated[int, Field(ge=2, le=MAX_PLAN_RANKS)] | Literal["node"] | None


class SearchSpace(Config):
    """Every combination is a candidate, if the plan is legal. Degrees multiply to the ranks.

    gpipe is left out by default: it takes as long as 1f1b and holds more.
    """

    tensor: Degrees = None  # degrees that may be chosen; null: any
    pipeline: Degrees = None  # degrees; null: any
    data: Degrees = None  # degrees; null: any
    context: tuple[Degree, ...] = (1, 2, 4, 8)  # degrees
    micro: tuple[Sequences, ...] = (1, 2, 4, 8, 16)  # sequences of a micro-batch
    # of the pipeline; the first is that of plans without one, where it has one stage a rank
    schedules: Annotated[tuple[Named, ...], Short("schedules")] = ("1f1b", "1f1b-split", "interleaved", "zb-h1", "zb-v")
    chunks: tuple[Degree, ...] | None = None  # stages of a rank when interleaved; null: every legal number
    # what the backward computes again: attention's core, whole layers
    recompute: tuple[Literal["none", "attention", "layer"], ...] = ("none", "attention", "layer")
    recompute_every: tuple[Positive, ...] = (1, 2, 3, 4, 8)  # of layers: the largest with which a plan fits
    activation_function: bool = True  # may be computed again by plans that hold too much otherwise
    zero: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)  # stages
    # ranks that share one copy of what ZeRO shards; node: those of one node; null: all replicas
    shards: tuple[Shards, ...] = (None,)
    sequence_parallel: tuple[bool, ...] = (False, True)  # activations between tensor regions are split
    # torch.compile, and CUDA graphs where a plan can be recorded; null: with and without both on GPUs, on a CPU as the
    # plan has them
    compiled: tuple[bool, ...] | None = None
    cuda_graphs: tuple[bool, ...] | None = None
    finalists: Positive = 50  # how many of the fastest are simulated action by action
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = USABLE  # of a device's memory

    @field_validator("*")
    @classmethod
    def _choices(cls, value: Any) -> Any:
        """Those of a field are at least one, and each is there once: twice, it would be two plans."""
        if isinstance(value, tuple):
            if not value:
                raise ValueError("there must be at least one choice; leave the field out for the usual ones")
            twice = {choice for choice in value if value.count(choice) > 1}
            if twice:
                raise ValueError(f"name each choice once; {', '.join(map(str, twice))} is there again")
        return value

    def chunks_for(self, name: ScheduleName, layers: int) -> tuple[int, ...]:
        """Stages per rank that a schedule may have with a model of so many layers."""
        if name == "interleaved":
            return self.chunks if self.chunks is not None else tuple(range(2, layers // 2 + 1))
        return (2,) if name == "zb-v" else (1,)
