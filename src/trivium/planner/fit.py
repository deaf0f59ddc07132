"""Fit the constants of the cost model to measured runs, with priors."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from trivium.cost.constants import Constants, prior_constants, priors
from trivium.cost.step_time import step
from trivium.planner.published_rows import Batch, Row, batches

Array = NDArray[np.float64]

# A residual log(predicted / measured) of this size costs as much as a constant one spread from its prior. The loss
# discounts larger residuals, so that runs with disturbances do not distort the constants.
MAX_FULL_RESIDUAL = 0.03
DIFFERENCE_SPREADS = 1e-3  # in spreads, of finite differences


class Fit(NamedTuple):
    """constants: fitted if some row depends on them. rows: number of fitted rows. moved: distance from the priors in
    spreads."""

    constants: Constants
    rows: int
    moved: dict[str, float]


def fit(rows: Sequence[Row], held: Mapping[str, float] | None = None) -> Fit:
    """Learn the constants by robust least squares on the logarithm of predicted over measured seconds, with priors.

    Rows excluded by published_rows.yaml are not used. Constants in `held` keep the given values.
    """
    used = [row for row in rows if row.fitted]
    start = prior_constants().with_values(held or {})
    if not used:
        return Fit(start, 0, {})
    grouped = [(batch, np.log([used[i].seconds for i in batch.where])) for batch in batches(used)]
    free = [name for name in priors() if name not in (held or {}) and _matters(grouped, name, start)]
    of = [priors()[name] for name in free]
    begin, spread = (np.array([getattr(p, field) for p in of]) for field in ("prior", "spread"))
    low, high = (np.array([getattr(p, field) for p in of]) for field in ("low", "high"))

    def misses(points: Array) -> Array:
        """Return what the fit minimises the squares of: a row for each point."""
        values = begin + points * spread
        # A column for each constant, so that all points are priced at once.
        constants = start.with_values({name: values[:, [i]] for i, name in enumerate(free)})
        errors = [_logarithms(batch, constants, len(points)) - measured for batch, measured in grouped]
        return np.concatenate([np.concatenate(errors, axis=1) / MAX_FULL_RESIDUAL, points], axis=1)

    lowest, highest = np.minimum((low - begin) / spread, -1e-9), np.maximum((high - begin) / spread, 1e-9)

    def slopes(point: Array) -> Array:
        """Return the derivatives of the misses at a point, by finite differences."""
        steps = np.where(point + DIFFERENCE_SPREADS <= highest, DIFFERENCE_SPREADS, -DIFFERENCE_SPREADS)
        here, *moved = misses(np.vstack([point, point + np.diag(steps)]))
        rises: Array = (np.array(moved) - here) / steps[:, np.newaxis]
        return rises.T

    found = least_squares(
        lambda point: misses(point[np.newaxis])[0],
        np.zeros(len(free)),
        jac=slopes,
        bounds=(lowest, highest),
        loss="cauchy",
    ).x
    values = np.clip(begin + found * spread, low, high)
    constants = start.with_values(dict(zip(free, values.tolist(), strict=True)))
    return Fit(constants, len(used), dict(zip(free, found.tolist(), strict=True)))


def _logarithms(batch: Batch, constants: Constants, points: int = 1) -> Array:
    """Return the logarithms of a batch's predicted seconds: a row for each of `points` vectors of constants."""
    seconds = step(batch.case, batch.machine, batch.stack, constants).parts.seconds
    return np.asarray(np.log(np.broadcast_to(np.asarray(seconds, dtype=float), (points, batch.where.size))))


def _matters(grouped: Sequence[tuple[Batch, Array]], name: str, start: Constants) -> bool:
    """Return whether any row's price depends on a constant."""
    prior = priors()[name]
    up = prior.prior + prior.spread / 10
    changed = start.with_values({name: up if up <= prior.high else prior.prior - prior.spread / 10})
    return any(not np.array_equal(_logarithms(b, changed), _logarithms(b, start)) for b, _ in grouped)
