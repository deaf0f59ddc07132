"""What plans hold, and how much of it they compute again: as little as the memory allows.

Three choices of recompute are rows of a search. What follows from the memory is not searched but found: plans over the
limit compute their activation function again, and plans that recompute layers only every k-th, the fewest that fit;
the function of the others again where fewer layers fit so, since a layer takes many times as long as its function.
Where not even all of them fit, the function again in the one that is under way.
"""

from itertools import product

import numpy as np
from numpy.typing import NDArray

from trivium.cost.case import LAYER, NONE
from trivium.cost.memory import memory_of_cases
from trivium.planner.config import SearchSpace
from trivium.planner.grid import Candidates, Column

Figures = NDArray[np.float64]


def memory_bytes(candidates: Candidates) -> Figures:
    """Of the worst rank of every plan."""
    return _held_and_least(candidates)[0]


def _held_and_least(candidates: Candidates) -> tuple[Figures, Figures]:
    """Of the worst rank of every plan; and that but for what a layer fills again, which it holds however many layers
    are recomputed. (A layer that waits holds its factors, or more.)"""
    if not len(candidates):
        return np.zeros(0), np.zeros(0)
    found, number = memory_of_cases(candidates.case, candidates.grid["schedule"]), len(candidates)
    total = np.broadcast_to(np.asarray(found.total, float), number)
    return total, total - np.broadcast_to(np.asarray(found.recomputed, float), number)


def as_lean_as_needed(candidates: Candidates, memory_limit: float, space: SearchSpace) -> tuple[Candidates, Figures]:
    """The same plans, row by row, with what each computes again, and what it then holds."""
    held, least = _held_and_least(candidates)
    if space.activation_function:
        candidates, held = _with_function_again(candidates, held, memory_limit)
    layers = np.flatnonzero((candidates.grid["recompute"] == LAYER) & (least <= memory_limit))
    return _with_fewer_layers(candidates, held, layers, memory_limit, space)


def _with_function_again(candidates: Candidates, held: Figures, memory_limit: float) -> tuple[Candidates, Figures]:
    """Plans over the limit compute their activation function again, where they hold less for it. A recomputed layer
    keeps its input only, whatever its activation function does: those come later."""
    rows = np.flatnonzero((held > memory_limit) & (candidates.grid["recompute"] != LAYER))
    leaner = memory_bytes(candidates.take(rows).changed(function_again=1))
    gains = leaner < held[rows]
    return candidates.changed(rows[gains], function_again=1), _put(held, rows[gains], leaner[gains])


def _with_fewer_layers(
    candidates: Candidates, held: Figures, rows: Column, memory_limit: float, space: SearchSpace
) -> tuple[Candidates, Figures]:
    """Plans that recompute layers do so with every k-th, for the largest k of the choices that fits; with all of them,
    and the function within the one that is computed again, where they fit in no other way. rows: of those that may.

    That all of them fit is not asked for: where weight gradients are put off, what waits of a layer is as much whether
    it was kept or recomputed, and a rank without recomputed layers fills none again. Where all could be kept, as the
    plan without recompute does, nothing changes.
    """
    rows = rows[memory_bytes(candidates.take(rows).changed(recompute=NONE)) > memory_limit]
    functions = (0, 1) if space.activation_function else (0,)
    often = sorted({1, *space.recompute_every}, reverse=True)
    every, function_again = (np.array(column) for column in zip(*product(often, functions), strict=True))
    # All choices of all plans at once: what is computed once for each moment of a schedule is dearer than rows are.
    tried = candidates.take(rows).grid.cross(recompute_every=every, function_again=function_again)
    holds = memory_bytes(Candidates(candidates.subject, tried)).reshape(len(rows), len(every))
    fits = holds <= memory_limit
    chosen, found = fits.argmax(axis=1), fits.any(axis=1)  # the first of the choices that fits
    rows, at = rows[found], chosen[found]
    leaner = candidates.changed(rows, recompute_every=every[at], function_again=function_again[at])
    return leaner, _put(held, rows, holds[found, at])


def _put(held: Figures, rows: Column, values: Figures) -> Figures:
    found = held.copy()
    found[rows] = values
    return found
