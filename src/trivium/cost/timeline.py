"""Simulate a schedule. The planner's estimates and the runtime's traces share the resulting timeline."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trivium.plan.schedule import Action, Op, Schedule, inputs, is_split, last_stage, rounds


@dataclass(frozen=True)
class Timeline:
    """Start and end of each action in seconds from the start of the step, and the working seconds of each pipeline
    rank."""

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
        """Return the spans as plain data in the format of `training/timeline.json`, sorted by rank and start."""
        order = sorted(self.spans.items(), key=lambda item: (self.rank_of[item[0]], item[1]))
        return [
            {"pipeline_rank": self.rank_of[action], "action": str(action), "start": start, "end": end}
            for action, (start, end) in order
        ]


def unit_seconds(action: Action) -> float:
    """Return 2 for a backward and 1 for any other action, to compare the shapes of schedules."""
    return 2.0 if action.op is Op.BACKWARD else 1.0


def simulate(schedule: Schedule, seconds: Callable[[Action], float], transfer: float = 0.0) -> Timeline:
    """Return the timeline of a schedule. An action starts when its rank is free and its inputs have arrived.

    A tensor that crosses ranks arrives `transfer` seconds after it was computed; its sender does not wait.
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
