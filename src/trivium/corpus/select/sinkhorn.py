"""Entropic optimal transport between two weighted clouds of points, in logarithms, in batches of rows.

The distance is min over couplings P of <P, C> + epsilon KL(P | a b^T); its dual potentials f and g fulfil
f_i = -epsilon log sum_j b_j exp((g_j - C_ij) / epsilon) and the same with a and b exchanged (Cuturi 2013; Peyré and
Cuturi 2019, section 4). Everything is a logarithm, so that no epsilon underflows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Blocks = Callable[[], Iterator[tuple[slice, Matrix]]]
"""The cost matrix by rows: each call gives every block again, (rows, costs [rows, M])."""


@dataclass(frozen=True)
class Transport:
    """f [N] and g [M], the distance they give, the error of the marginals, and how many iterations it took."""

    f: Vector
    g: Vector
    distance: float
    error: float
    iterations: int


def sinkhorn(
    blocks: Blocks, a: Vector, b: Vector, *, epsilon: float, tolerance: float = 1e-6, iterations: int = 10_000
) -> Transport:
    """Return the potentials for row weights `a` [N] and column weights `b` [M], both above 0 with sum 1.

    epsilon: in the unit of the costs. Ends when the row marginals are off by `tolerance` in total or after so many
    `iterations`. Epsilon is halved from the largest cost down, each step beginning from the one before.
    """
    log_a, log_b = np.log(a), np.log(b)
    f, g = np.zeros(len(a)), np.zeros(len(b))
    done, error = 0, float("inf")
    scales = _scales(max(float(costs.max()) for _, costs in blocks()), epsilon)
    for scale in scales:
        last = scale == scales[-1]
        for turn in range(iterations - done if last else 3):
            g = _columns(blocks, f + scale * log_a, scale, len(b))
            f, error = _rows(blocks, g + scale * log_b, f, a, scale)
            done += 1
            if last and turn and error <= tolerance:
                break
    g = _columns(blocks, f + epsilon * log_a, epsilon, len(b))
    # with g exact for f, the dual value is <a, f> + <b, g>: the coupling's mass is 1
    return Transport(f, g, float(a @ f + b @ g), error, done)


def _scales(largest: float, epsilon: float) -> list[float]:
    scales = [epsilon]
    while scales[-1] * 2 < largest:
        scales.append(scales[-1] * 2)
    return scales[::-1]


def _columns(blocks: Blocks, weighted_f: Vector, epsilon: float, columns: int) -> Vector:
    """g for this f: a log-sum-exp over all rows, block by block."""
    highest = np.full(columns, -np.inf)
    total = np.zeros(columns)
    for rows, costs in blocks():
        exponents = (weighted_f[rows, None] - costs) / epsilon
        top = np.maximum(highest, exponents.max(axis=0))
        total = total * np.exp(highest - top) + np.exp(exponents - top).sum(axis=0)
        highest = top
    return -epsilon * (highest + np.log(total))


def _rows(blocks: Blocks, weighted_g: Vector, f: Vector, a: Vector, epsilon: float) -> tuple[Vector, float]:
    """f for this g, and how far the row marginals were from `a` with the f before."""
    found = np.empty_like(f)
    error = 0.0
    for rows, costs in blocks():
        exponents = (weighted_g - costs) / epsilon
        top = exponents.max(axis=1)
        found[rows] = -epsilon * (top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))
        error += float(np.abs(a[rows] * np.expm1((f[rows] - found[rows]) / epsilon)).sum())
    return found, error
