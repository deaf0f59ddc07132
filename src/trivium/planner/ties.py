"""Plans that are about as good as the best one, and the simplest of them: the one that a search chooses."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.plan.layout import AXES
from trivium.plan.schedule import SCHEDULE_NAMES
from trivium.planner.grid import Column
from trivium.planner.pricing import Ranking

TIE_FRACTION = 0.01  # share of the best plan's time or energy, below the error of predictions and repeated measurements
_PLAIN = SCHEDULE_NAMES.index("1f1b")


class Choice(NamedTuple):
    """The chosen plan: the number of its ranking, and its 0-based place there. ties: plans that were as good."""

    ranking: int
    place: int
    ties: int


NOTHING = Choice(0, 0, 0)  # the choice of a search in which no plan fits


def simplest(rankings: Sequence[Ranking]) -> Choice:
    """Choose the simplest plan of several rankings with one objective among those within TIE_FRACTION of the best. Of
    equally simple plans the best is chosen. Only simulated plans are compared; the rankings must not all be empty."""
    needs = [ranking.needs for ranking in rankings]
    limit = (1 + TIE_FRACTION) * min(each.min() for each in needs if len(each))
    numbers = np.repeat(np.arange(len(rankings)), [len(each) for each in needs])
    places = np.concatenate([np.arange(len(each)) for each in needs])
    keys = np.concatenate([_complexity(ranking) for ranking in rankings])
    every = np.concatenate(needs)
    tied = np.flatnonzero(every <= limit)
    # lexsort sorts by its last key first.
    first = tied[np.lexsort([every[tied], *keys[tied].T[::-1]])[0]]
    return Choice(int(numbers[first]), int(places[first]), len(tied))


def _complexity(ranking: Ranking) -> NDArray[np.int64]:
    """Return what makes each simulated plan complicated, the most important first: the order of docs/planner.md."""
    rows = _rows(ranking)
    grid, subject = ranking.priced.candidates.grid.take(rows), ranking.priced.candidates.subject
    axes = sum(((grid[axis] > 1).astype(np.int64) for axis in (*AXES, "expert")), np.zeros(len(rows), np.int64))
    return np.stack(
        [
            axes,
            np.full(len(rows), round(100 * (subject.offload.optimizer + subject.offload.activations))),
            grid["chunks"] > 1,
            grid["schedule"] != _PLAIN,
            grid["zero"],
            grid["shards"] > 0,
            grid["recompute"],
            grid["function_again"],
            grid["sequence_parallel"],
            grid["overlap_tensor"],
            np.full(len(rows), subject.compiled),
            subject.records(grid["zero"]),
        ],
        axis=1,
    ).astype(np.int64)


def _rows(ranking: Ranking) -> Column:
    """Return the rows of the simulated plans, the best first."""
    return ranking.priced.fitting[ranking.order[: len(ranking.simulated)]]
