"""The constants that explain measured runs best, and stay near what was believed before."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from trivium.cost.constants import Constants, prior_constants, priors
from trivium.cost.step_time import step_seconds
from trivium.planner.published_rows import Batch, Row, batches

Array = NDArray[np.float64]

# A logarithm of predicted over measured of this size costs as much as a constant one spread from its prior; larger
# ones count ever less, so that runs which something held up do not bend the constants.
SCALE = 0.03
STEP = 1e-3  # of a spread, for derivatives


class Fit(NamedTuple):
    """constants: fitted where the rows say something. rows: how many took part. moved: spreads from the priors."""

    constants: Constants
    rows: int
    moved: dict[str, float]


def fit(rows: Sequence[Row]) -> Fit:
    """Robust least squares on the logarithm of predicted over measured seconds, with priors; rows not to be fitted
    (published_rows.yaml) take no part."""
    used = [row for row in rows if row.fitted]
    start = prior_constants()
    if not used:
        return Fit(start, 0, {})
    grouped = [(batch, np.log([used[i].seconds for i in batch.where])) for batch in batches(used)]
    free = [name for name in priors() if _matters(grouped, name, start)]
    of = [priors()[name] for name in free]
    begin, spread = (np.array([getattr(p, field) for p in of]) for field in ("prior", "spread"))
    low, high = (np.array([getattr(p, field) for p in of]) for field in ("low", "high"))

    def misses(z: Array) -> Array:
        constants = start.with_values(dict(zip(free, (begin + z * spread).tolist(), strict=True)))
        errors = [_logarithms(batch, constants) - measured for batch, measured in grouped]
        return np.concatenate([np.concatenate(errors) / SCALE, z])

    bounds = (np.minimum((low - begin) / spread, -1e-9), np.maximum((high - begin) / spread, 1e-9))
    found = least_squares(misses, np.zeros(len(free)), bounds=bounds, loss="cauchy", diff_step=STEP).x
    values = np.clip(begin + found * spread, low, high)
    constants = start.with_values(dict(zip(free, values.tolist(), strict=True)))
    return Fit(constants, len(used), dict(zip(free, found.tolist(), strict=True)))


def _logarithms(batch: Batch, constants: Constants) -> Array:
    seconds = step_seconds(batch.case, batch.machine, batch.stack, constants).seconds
    return np.asarray(np.log(np.broadcast_to(np.asarray(seconds, dtype=float), batch.where.shape)))


def _matters(grouped: Sequence[tuple[Batch, Array]], name: str, start: Constants) -> bool:
    """Whether any row's price depends on a constant."""
    prior = priors()[name]
    up = prior.prior + prior.spread / 10
    changed = start.with_values({name: up if up <= prior.high else prior.prior - prior.spread / 10})
    return any(not np.array_equal(_logarithms(b, changed), _logarithms(b, start)) for b, _ in grouped)
