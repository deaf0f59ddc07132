"""What plans hold, and how much of it they compute again: as little as the memory allows.

Three choices of recompute are rows of a search. What follows from the memory is not searched but found: plans over the
limit compute their activation function again, and plans that recompute layers only every k-th, the fewest that fit;
the function of the others again where fewer layers fit so, since a layer takes many times as long as its function.
"""

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import LAYER, NONE
from trivium.cost.memory import memory_of_cases
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Candidates, Column

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
    held = memory_bytes(candidates)
    if space.activation_function:
        candidates, held = _with_function_again(candidates, held, memory_limit)
    return _with_fewer_layers(candidates, held, memory_limit, space)


def _with_function_again(
    candidates: Candidates, held: Figures, memory_limit: float
) -> tuple[Candidates, Figures]:
    """Plans over the limit compute their activation function again, where they hold less for it. A recomputed layer
    keeps its input only, whatever its activation function does."""
    rows = np.flatnonzero((held > memory_limit) & (candidates.grid["recompute"] != LAYER))
    leaner = memory_bytes(candidates.take(rows).changed(function_again=1))
    gains = leaner < held[rows]
    return candidates.changed(rows[gains], function_again=1), _put(held, rows[gains], leaner[gains])


def _with_fewer_layers(
    candidates: Candidates, held: Figures, memory_limit: float, space: SearchSpace
) -> tuple[Candidates, Figures]:
    """Plans that fit with all layers recomputed do so with every k-th, for the largest k of the choices that fits.

    Where all could be kept, as the plan without recompute does, nothing changes.
    """
    rows = np.flatnonzero((held <= memory_limit) & (candidates.grid["recompute"] == LAYER))
    rows = rows[memory_bytes(candidates.take(rows).changed(recompute=NONE)) > memory_limit]
    for every in sorted(set(space.recompute_every) - {1}, reverse=True):
        for function_again in (0, 1) if space.activation_function else (0,):
            choice = candidates.changed(rows, recompute_every=every, function_again=function_again)
            fewer = memory_bytes(choice.take(rows))
            fits = fewer <= memory_limit
            candidates = candidates.changed(rows[fits], recompute_every=every, function_again=function_again)
            held = _put(held, rows[fits], fewer[fits])
            rows = rows[~fits]
    return candidates, held


def _put(held: Figures, rows: Column, values: Figures) -> Figures:
    found = held.copy()
    found[rows] = values
    return found
