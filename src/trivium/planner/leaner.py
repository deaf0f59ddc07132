"""Choose the least recomputation with which each plan fits.

The three recompute modes are rows of a search. Two further choices follow from the memory limit: plans above it
recompute their activation function, and plans that recompute layers do so only for every k-th layer, with the largest k
that fits. The remaining layers recompute their activation function if that allows a larger k, because a layer takes
many times as long as its activation function. If not even recomputing all layers fits, the current layer also
recomputes its function.
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
    """Return the bytes of the worst rank of every plan."""
    return _held_and_least(candidates)[0]


def _held_and_least(candidates: Candidates) -> tuple[Figures, Figures]:
    """Return the bytes of the worst rank of every plan, and a lower bound for any number of recomputed layers: the same
    without the memory that one recomputed layer allocates again, and without deferred factors, which are fewer where
    fewer layers are recomputed."""
    if not len(candidates):
        return np.zeros(0), np.zeros(0)
    found, number = memory_of_cases(candidates.case, candidates.grid["schedule"]), len(candidates)
    total = np.broadcast_to(np.asarray(found.total, float), number)
    return total, total - np.broadcast_to(np.asarray(found.recomputed + found.put_off, float), number)


def as_lean_as_needed(candidates: Candidates, memory_limit: float, space: SearchSpace) -> tuple[Candidates, Figures]:
    """Return the plans, row by row, with the least recomputation that fits, and their bytes."""
    held, least = _held_and_least(candidates)
    if space.activation_function:
        candidates, held = _with_function_again(candidates, held, memory_limit)
    layers = np.flatnonzero((candidates.grid["recompute"] == LAYER) & (least <= memory_limit))
    return _with_fewer_layers(candidates, held, layers, memory_limit, space)


def _with_function_again(candidates: Candidates, held: Figures, memory_limit: float) -> tuple[Candidates, Figures]:
    """Recompute the activation function in plans above the limit, if that saves memory. Recomputed layers keep only
    their input in any case; `_with_fewer_layers` handles them."""
    rows = np.flatnonzero((held > memory_limit) & (candidates.grid["recompute"] != LAYER))
    leaner = memory_bytes(candidates.take(rows).changed(function_again=1))
    gains = leaner < held[rows]
    return candidates.changed(rows[gains], function_again=1), _put(held, rows[gains], leaner[gains])


def _with_fewer_layers(
    candidates: Candidates, held: Figures, rows: Column, memory_limit: float, space: SearchSpace
) -> tuple[Candidates, Figures]:
    """Recompute only every k-th layer in plans that recompute layers, for the largest k that fits. If no k fits, all
    layers and the activation function within the current one are recomputed. rows: the plans to consider.

    Recomputing fewer layers can fit even if recomputing all of them does not: deferred weight gradients keep as much of
    a kept layer as of a recomputed one, and a rank without recomputed layers allocates none of them again. Plans that
    fit without recomputation are not changed if the space has them without it.
    """
    if "none" in space.recompute:
        rows = rows[memory_bytes(candidates.take(rows).changed(recompute=NONE)) > memory_limit]
    functions = (0, 1) if space.activation_function else (0,)
    often = sorted({1, *space.recompute_every}, reverse=True)
    every, function_again = (np.array(column) for column in zip(*product(often, functions), strict=True))
    # Price all choices of all plans at once, because the work per memory peak of a schedule outweighs that per row.
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
