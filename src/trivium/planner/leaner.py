"""What plans hold, and how much of it they compute again: as little as the memory allows.

Three choices of recompute are rows of a search. What follows from the memory is not searched but found: plans over the
limit compute their activation function again, and plans that recompute layers only every k-th, the fewest that fit.
"""

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import LAYER, NONE
from trivium.cost.memory import memory_of_cases
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Candidates, Mask

Figures = NDArray[np.float64]


def memory_bytes(candidates: Candidates) -> Figures:
    """Of the worst rank of every plan."""
    if not len(candidates):
        return np.zeros(0)
    total = memory_of_cases(candidates.case, candidates.grid["schedule"]).total
    return np.broadcast_to(np.asarray(total, float), len(candidates))


def as_lean_as_needed(
    candidates: Candidates, memory_limit: float, space: SearchSpace
) -> tuple[Candidates, Figures]:
    """The same plans, row by row, with what each computes again, and what it then holds."""
    held = memory_bytes(candidates).copy()
    layers = candidates.grid["recompute"] == LAYER
    if space.activation_function:
        # A recomputed layer keeps its input only, whatever its activation function does.
        candidates = _with_function_again(candidates, held, (held > memory_limit) & ~layers)
    candidates = _with_fewer_layers(candidates, held, (held <= memory_limit) & layers, memory_limit, space)
    return candidates, held


def _with_function_again(candidates: Candidates, held: Figures, asked: Mask) -> Candidates:
    """Of the plans `asked`, those that hold less for it; `held` is told."""
    rows = np.flatnonzero(asked)
    leaner = memory_bytes(candidates.take(rows).changed(function_again=1))
    gains = leaner < held[rows]
    rows = rows[gains]
    held[rows] = leaner[gains]
    return candidates.changed(rows, function_again=1)


def _with_fewer_layers(
    candidates: Candidates, held: Figures, asked: Mask, memory_limit: float, space: SearchSpace
) -> Candidates:
    """Of the plans `asked`, which fit, every k-th layer for the largest k that fits; `held` is told.

    Where all could be kept, as the plan without recompute does, nothing changes.
    """
    rows = np.flatnonzero(asked)
    rows = rows[memory_bytes(candidates.take(rows).changed(recompute=NONE)) > memory_limit]
    for every in sorted(set(space.recompute_every) - {1}, reverse=True):
        fewer = memory_bytes(candidates.take(rows).changed(recompute_every=every))
        fits = fewer <= memory_limit
        held[rows[fits]] = fewer[fits]
        candidates = candidates.changed(rows[fits], recompute_every=every)
        rows = rows[~fits]
    return candidates
