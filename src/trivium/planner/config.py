"""The choices of a search for plans."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from trivium.config import Config, Positive, Short
from trivium.cost.hardware import USABLE_MEMORY_SHARE
from trivium.plan.offload import Share
from trivium.plan.schedule import ScheduleName
from trivium.plan.sizes import MAX_PLAN_RANKS, Degree, Sequences

Named = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "1f1b-split"]
Degrees = tuple[Degree, ...] | None
Objective = Literal["time", "energy"]
Shards = Annotated[int, Field(ge=2, le=MAX_PLAN_RANKS)] | Literal["node"] | None


class SearchSpace(Config):
    """The values that a search tries. Every combination that gives a legal plan is a candidate.

    The degrees of a plan multiply to the number of ranks. gpipe is not a default, because it takes as long as 1f1b and
    needs more memory.
    """

    tensor: Degrees = None  # degrees of tensor parallelism; null: any
    pipeline: Degrees = None  # degrees of pipeline parallelism; null: any
    data: Degrees = None  # degrees of data parallelism; null: any
    expert: Degrees = None  # degrees of expert parallelism; null: any
    context: tuple[Degree, ...] = (1, 2, 4, 8)  # degrees of context parallelism
    micro: tuple[Sequences, ...] = (1, 2, 4, 8, 16)  # sequences of a micro-batch
    # pipeline schedules; plans without a pipeline have the first one with one stage per rank
    schedules: Annotated[tuple[Named, ...], Short("schedules")] = ("1f1b", "1f1b-split", "interleaved", "zb-h1", "zb-v")
    chunks: tuple[Degree, ...] | None = None  # stages per rank of interleaved schedules; null: every legal number
    # what the backward pass recomputes: the core of attention, or whole layers
    recompute: tuple[Literal["none", "attention", "layer"], ...] = ("none", "attention", "layer")
    recompute_every: tuple[Positive, ...] = (1, 2, 3, 4, 8)  # recompute every k-th layer, with the largest k that fits
    activation_function: bool = True  # recompute activation functions in plans that do not fit otherwise
    zero: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)  # ZeRO stages
    # number of replicas that share one copy of what ZeRO shards; node: those of one node; null: all
    shards: tuple[Shards, ...] = (None,)
    sequence_parallel: tuple[bool, ...] = (False, True)  # split activations between tensor-parallel regions
    # send split activations round a ring beside their products, which has not run on a GPU yet
    overlap_tensor: tuple[bool, ...] = (False,)
    # use torch.compile; null: with and without it on GPUs, and on CPUs as the plan says
    compiled: tuple[bool, ...] | None = None
    # replay steps as CUDA graphs if the plan allows it; null: with and without them on GPUs
    cuda_graphs: tuple[bool, ...] | None = None
    # what the chosen plan needs least of: seconds per step, or joules by the machine's watts
    objective: Annotated[Objective, Short("objective")] = "time"
    # shares of the optimizer state, and of the layers' activations, on the host; null: some where nothing fits without
    offload: tuple[Share, ...] | None = None
    finalists: Positive = 50  # number of the fastest candidates that are simulated action by action
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = (
        USABLE_MEMORY_SHARE  # share of a device's memory that a plan may use
    )

    @field_validator("*")
    @classmethod
    def _choices(cls, value: Any) -> Any:
        """Raise ValueError if a field has no choice, or one twice, which would count as two plans."""
        if isinstance(value, tuple):
            if not value:
                raise ValueError("there must be at least one choice; leave the field out for the usual ones")
            twice = {choice for choice in value if value.count(choice) > 1}
            if twice:
                raise ValueError(f"name each choice once; {', '.join(map(str, twice))} is there again")
        return value

    def chunks_for(self, name: ScheduleName, layers: int) -> tuple[int, ...]:
        """Return the numbers of stages per rank that a schedule may have with a model of `layers` layers."""
        if name == "interleaved":
            return self.chunks if self.chunks is not None else tuple(range(2, layers // 2 + 1))
        return (2,) if name == "zb-v" else (1,)
