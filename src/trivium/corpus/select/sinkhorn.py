"""Entropic optimal transport between two weighted clouds of points, in logarithms.

The distance is min over couplings P of <P, C> + epsilon KL(P | a b^T); its dual potentials f and g fulfil
f_i = -epsilon log sum_j b_j exp((g_j - C_ij) / epsilon) and the same with a and b exchanged (Cuturi 2013; Peyré and
Cuturi 2019, section 4). The potentials are logarithms, so that no epsilon underflows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.floating]

_SCALED_AT_ONCE = 50  # iterations on one coupling matrix
_LARGEST_SCALE = 1e30  # of a row or column of it; larger ones would lose its small entries


@dataclass(frozen=True)
class Transport:
    """f [N] and g [M], the distance they give, the error of the marginals, and the number of iterations."""

    f: Vector
    g: Vector
    distance: float
    error: float
    iterations: int


def sinkhorn(
    costs: Matrix, a: Vector, b: Vector, *, epsilon: float, tolerance: float = 1e-6, iterations: int = 10_000
) -> Transport:
    """Return the potentials for costs [N, M], row weights `a` [N] and column weights `b` [M], both above 0 with sum 1.

    epsilon: in the unit of the costs. Ends when the row marginals are off by `tolerance` in total or after
    `iterations`. Epsilon is halved from the largest cost down, each scale beginning with the potentials of the one
    before.
    """
    costs = costs.astype(np.float64)
    log_a, log_b = np.log(a), np.log(b)
    f, g = np.zeros(len(a)), np.zeros(len(b))
    done, error = 0, float("inf")
    scales = _scales(float(costs.max()), epsilon)
    for scale in scales:
        last = scale == scales[-1]
        turns = 0
        while done < iterations if last else turns < 3:
            g = soft_minimum(costs.T, f + scale * log_a, scale)
            before, f = f, soft_minimum(costs, g + scale * log_b, scale)
            error = float(np.abs(a * np.expm1((before - f) / scale)).sum())
            done, turns = done + 1, turns + 1
            if last and turns > 1 and error <= tolerance:
                break
            if last:
                f, more = _scaled(costs, f, g, a, b, epsilon=scale, tolerance=tolerance, most=iterations - done)
                done += more
    g = soft_minimum(costs.T, f + epsilon * log_a, epsilon)
    # With g exact for f, the dual value is <a, f> + <b, g>, because the mass of the coupling is 1.
    return Transport(f, g, float(a @ f + b @ g), error, done)


def soft_minimum(costs: Matrix, weighted: Vector, epsilon: float) -> Vector:
    """Return -epsilon log sum_j exp((weighted_j - C_ij) / epsilon) of each row of costs [N, M].

    With weighted = g + epsilon log b, this is the potential f of any point with these costs to the targets.
    """
    exponents = (weighted.astype(costs.dtype) - costs) / costs.dtype.type(epsilon)
    top = exponents.max(axis=1)
    exponents -= top[:, None]
    total = np.exp(exponents, out=exponents).sum(axis=1, dtype=np.float64)
    return np.asarray(-epsilon * (top + np.log(total)), dtype=np.float64)


def _scales(largest: float, epsilon: float) -> list[float]:
    scales = [epsilon]
    while scales[-1] * 2 < largest:
        scales.append(scales[-1] * 2)
    return scales[::-1]


def _scaled(
    costs: Matrix, f: Vector, g: Vector, a: Vector, b: Vector, *, epsilon: float, tolerance: float, most: int
) -> tuple[Vector, int]:
    """Return f after some iterations, and their number.

    They scale rows and columns of one coupling matrix: a product of a matrix and a vector in place of exponentials of
    the whole matrix. They end early if the scales grow so far that the small entries of the matrix matter.
    """
    coupling = (f[:, None] + g - costs) / epsilon
    np.exp(coupling, out=coupling)
    coupling *= a[:, None]
    coupling *= b
    u = np.ones(len(a))
    for number in range(min(_SCALED_AT_ONCE, most)):
        with np.errstate(all="ignore"):
            rows = coupling @ (b / (u @ coupling))
            new = a / rows
        if not (np.isfinite(new).all() and new.min() > 1 / _LARGEST_SCALE and new.max() < _LARGEST_SCALE):
            return f + epsilon * np.log(u), number
        error, u = float(np.abs(u * rows - a).sum()), new
        if error <= tolerance:
            return f + epsilon * np.log(u), number + 1
    return f + epsilon * np.log(u), min(_SCALED_AT_ONCE, most)
