"""What plans hold, and how much of it they compute again: as little as the memory allows.

Three choices of recompute are rows of a search. What follows from the memory is not searched but found: plans over the
limit compute their activation function again, and plans that recompute layers only every k-th, the fewest that fit;
the function of the others again where fewer layers fit so, since a layer takes many times as long as its function.
Where not even all of them fit, the function again in the one that is under way.
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
    keeps its input only, whatever its activation function does: those come later."""
    rows = np.flatnonzero((held > memory_limit) & (candidates.grid["recompute"] != LAYER))
    leaner = memory_bytes(candidates.take(rows).changed(function_again=1))
    gains = leaner < held[rows]
    return candidates.changed(rows[gains], function_again=1), _put(held, rows[gains], leaner[gains])


def _with_fewer_layers(
    candidates: Candidates, held: Figures, memory_limit: float, space: SearchSpace
) -> tuple[Candidates, Figures]:
    """Plans that recompute layers do so with every k-th, for the largest k of the choices that fits; with all of them,
    and the function within the one that is computed again, where they fit in no other way.

    That all of them fit is not asked for: where weight gradients are put off, what waits of a layer is as much whether
    it was kept or recomputed, and a rank without recomputed layers fills none again. Where all could be kept, as the
    plan without recompute does, nothing changes.
    """
    rows = np.flatnonzero(candidates.grid["recompute"] == LAYER)
    fits = held[rows] <= memory_limit
    rows = np.sort(np.concatenate([rows[fits], _with_hope(candidates, rows[~fits], memory_limit)]))
    rows = rows[memory_bytes(candidates.take(rows).changed(recompute=NONE)) > memory_limit]
    functions = (0, 1) if space.activation_function else (0,)
    for every in sorted({1, *space.recompute_every}, reverse=True):
        for function_again in functions:
            choice = candidates.take(rows).changed(recompute_every=every, function_again=function_again)
            fewer = memory_bytes(choice)
            fits = fewer <= memory_limit
            candidates = candidates.changed(rows[fits], recompute_every=every, function_again=function_again)
            held = _put(held, rows[fits], fewer[fits])
            rows = rows[~fits]
    return candidates, held


def _with_hope(candidates: Candidates, rows: Column, memory_limit: float) -> Column:
    """Of plans that recompute all layers and do not fit, those that may fit in another way: all that their fullest rank
    holds, but for what a layer fills again, it holds in any. (A layer that waits holds its factors, or more.)"""
    if not len(rows):
        return rows
    some = candidates.take(rows)
    full = memory_of_cases(some.case, some.grid["schedule"])
    return rows[full.total - full.recomputed <= memory_limit]


def _put(held: Figures, rows: Column, values: Figures) -> Figures:
    found = held.copy()
    found[rows] = values
    return found
