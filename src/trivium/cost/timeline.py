"""Time a schedule: the planner's estimate and the runtime's trace share this form."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trivium.plan.schedule import Action, Op, Schedule, inputs, is_split, last_stage, rounds


@dataclass(frozen=True)
class Timeline:
    """When each action ran, in seconds from the start of the step, and how long each pipeline rank worked."""

    spans: dict[Action, tuple[float, float]]
    rank_of: dict[Action, int]
    busy: tuple[float, ...]

    @property
    def duration(self) -> float:
        return max(end for _, end in self.spans.values())

    @property
    def bubble_fraction(self) -> float:
        """Idle over busy time of all ranks, as in the pipeline papers: (p - 1) / m for 1F1B."""
        return self.duration * len(self.busy) / sum(self.busy) - 1

    def rows(self) -> list[dict[str, Any]]:
        """The spans as plain data, the form of `training/timeline.json`, by rank and start."""
        order = sorted(self.spans.items(), key=lambda item: (self.rank_of[item[0]], item[1]))
        return [
            {"pipeline_rank": self.rank_of[action], "action": str(action), "start": start, "end": end}
            for action, (start, end) in order
        ]


def unit_seconds(action: Action) -> float:
    """Of actions of equal size, a backward twice a forward: what the form of a schedule alone costs."""
    return 2.0 if action.op is Op.BACKWARD else 1.0


def simulate(schedule: Schedule, seconds: Callable[[Action], float], transfer: float = 0.0) -> Timeline:
    """An action starts when its rank is free and its inputs have arrived.

    A value that crosses ranks arrives `transfer` seconds after it was made; nobody waits to send it.
    """
    last, split = last_stage(schedule), is_split(schedule)
    rank_of = {action: rank for rank, row in enumerate(schedule) for action in row}
    spans: dict[Action, tuple[float, float]] = {}
    free = [0.0] * len(schedule)
    for action in itertools.chain.from_iterable(rounds(schedule)):
        rank = rank_of[action]
        needs = inputs(action, last, split=split)
        arrived = [spans[need][1] + transfer * (rank_of[need] != rank) for need in needs]
        start = max([free[rank], *arrived])
        free[rank] = start + seconds(action)
        spans[action] = (start, free[rank])
    return Timeline(spans, rank_of, busy=tuple(sum(map(seconds, row)) for row in schedule))
