"""How far predictions are from published measurements."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.cost.constants import Constants
from trivium.cost.step_time import step_seconds
from trivium.planner.published_rows import Batch, Row, Table, over_batches

Array = NDArray[np.float64]


class Errors(NamedTuple):
    """Predicted over measured, less one, in percent. bias: mean with signs; the others of absolute errors."""

    n: int
    bias: float
    mape: float
    median: float
    p95: float
    max: float


@dataclass(frozen=True)
class Backtest:
    """Predictions beside measurements; NaN where a row has none. problems: of rows that could not be read."""

    rows: tuple[Row, ...]
    seconds: Array
    memory: Array
    problems: tuple[str, ...]

    def errors(self, src: str | None = None) -> dict[str, Errors]:
        """Of seconds, and of memory where it is known, over the rows of a source or over all."""
        chosen = np.array([src in (None, row.src) for row in self.rows], dtype=bool)
        measured = np.array([row.seconds for row in self.rows])
        held = np.array([np.nan if row.memory_bytes is None else row.memory_bytes for row in self.rows])
        found = {"seconds": errors_of(self.seconds[chosen], measured[chosen])}
        if np.isfinite(self.memory[chosen] / held[chosen]).any():
            found["memory"] = errors_of(self.memory[chosen], held[chosen])
        return found

    @property
    def sources(self) -> tuple[str, ...]:
        """In the order of the file."""
        return tuple(dict.fromkeys(row.src for row in self.rows))

    def tree(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "overall": _tree(self.errors()),
            "by_src": {src: _tree(self.errors(src)) for src in self.sources},
            "rows": [self._row_tree(i) for i in range(len(self.rows))],
            "skipped": list(self.problems),
        }

    def _row_tree(self, i: int) -> dict[str, Any]:
        row = self.rows[i]
        found = {
            "line": row.line,
            "src": row.src,
            "machine": row.machine,
            "stack": row.stack.name,
            "fitted": row.fitted,
            "seconds": row.seconds,
            "predicted_seconds": float(self.seconds[i]),
        }
        if np.isfinite(self.memory[i]):
            found |= {"memory_bytes": row.memory_bytes, "predicted_memory_bytes": float(self.memory[i])}
        return found


def backtest(table: Table, constants: Constants | None = None) -> Backtest:
    """Price every row of a table. constants: by default the shipped ones."""
    seconds = over_batches(table.rows, lambda batch: predicted_seconds(batch, constants))
    return Backtest(table.rows, seconds, np.full(len(table.rows), np.nan), table.problems)


def predicted_seconds(batch: Batch, constants: Constants | None) -> Array:
    """Of each row of a batch."""
    seconds = step_seconds(batch.case, batch.machine, batch.stack, constants).seconds
    return np.broadcast_to(np.asarray(seconds, dtype=float), batch.where.shape)


def errors_of(predicted: Iterable[float], measured: Iterable[float]) -> Errors:
    """Over the pairs of which both are known."""
    ratio = np.asarray(list(predicted), dtype=float) / np.asarray(list(measured), dtype=float)
    percent = 100 * (ratio[np.isfinite(ratio)] - 1)
    if not percent.size:
        return Errors(0, *([float("nan")] * 5))
    size = np.abs(percent)
    return Errors(
        int(percent.size),
        float(percent.mean()),
        float(size.mean()),
        float(np.median(size)),
        float(np.percentile(size, 95)),
        float(size.max()),
    )


class Choice(NamedTuple):
    """Runs that differ only in layout. regret: how much longer the planner's first choice took than the best."""

    rows: int
    regret: float


def choices(rows: Sequence[Row], seconds: Array, at_least: int) -> list[Choice]:
    """For every workload with enough measured layouts."""
    groups: dict[tuple[float | str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.workload, []).append(place)
    found = []
    for places in groups.values():
        if len(places) >= at_least:
            first = places[int(np.argmin(seconds[places]))]
            best = min(rows[p].seconds for p in places)
            found.append(Choice(len(places), rows[first].seconds / best - 1))
    return found


def _tree(errors: dict[str, Errors]) -> dict[str, Any]:
    return {"n": errors["seconds"].n, **{name: found._asdict() for name, found in errors.items()}}
