"""Compare predictions with published measurements."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.cost.constants import Constants
from trivium.cost.published_memory import published_memory
from trivium.cost.step_time import step
from trivium.planner.published_rows import Batch, Row, Table, over_batches

Array = NDArray[np.float64]


class Errors(NamedTuple):
    """Relative errors predicted / measured - 1 in percent. bias: signed mean; the others are of absolute errors."""

    n: int
    bias: float
    mape: float
    median: float
    p95: float
    max: float


@dataclass(frozen=True)
class Backtest:
    """Predictions and measurements by row. problems: messages for rows that could not be read."""

    rows: tuple[Row, ...]
    seconds: Array
    memory: Array
    problems: tuple[str, ...]

    def errors(self, src: str | None = None) -> dict[str, Errors]:
        """Return the errors of seconds, and of memory if known, over the rows of a source or over all rows."""
        chosen = np.array([src in (None, row.src) for row in self.rows], dtype=bool)
        measured = np.array([row.seconds for row in self.rows])
        held = np.array([np.nan if row.memory_bytes is None else row.memory_bytes for row in self.rows])
        found = {"seconds": errors_of(self.seconds[chosen], measured[chosen])}
        if np.isfinite(held[chosen]).any():
            found["memory"] = errors_of(self.memory[chosen], held[chosen])
        return found

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources in the order of the file."""
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
        if row.memory_bytes is not None:
            found |= {"memory_bytes": row.memory_bytes, "predicted_memory_bytes": float(self.memory[i])}
        return found


def backtest(table: Table, constants: Constants | None = None) -> Backtest:
    """Price every row of a table. constants: by default the shipped ones. Rows whose sizes overflow are skipped like
    those that could not be read."""
    with np.errstate(over="ignore", invalid="ignore"):
        seconds = over_batches(table.rows, lambda batch: predicted_seconds(batch, constants))
        memory = over_batches(table.rows, predicted_memory)
    priced = np.isfinite(seconds) & np.isfinite(memory)
    endless = [
        f"line {row.line}: no finite time or memory follows from its numbers; make them smaller"
        for row, fine in zip(table.rows, priced, strict=True)
        if not fine
    ]
    rows = tuple(row for row, fine in zip(table.rows, priced, strict=True) if fine)
    return Backtest(rows, seconds[priced], memory[priced], (*table.problems, *endless))


def predicted_seconds(batch: Batch, constants: Constants | None) -> Array:
    """Return the predicted seconds of each row of a batch."""
    seconds = step(batch.case, batch.machine, batch.stack, constants).parts.seconds
    return np.broadcast_to(np.asarray(seconds, dtype=float), batch.where.shape)


def predicted_memory(batch: Batch) -> Array:
    """Return the predicted bytes of the worst rank of each row of a batch."""
    held = published_memory(batch.case, batch.stack)
    return np.broadcast_to(np.asarray(held, dtype=float), batch.where.shape)


def errors_of(predicted: Iterable[float], measured: Iterable[float]) -> Errors:
    """Return the errors over the pairs in which both values are known."""
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


def regret(rows: Sequence[Row], seconds: Array) -> float:
    """Return by which fraction the run that the planner would choose was slower than the fastest one."""
    return rows[int(np.argmin(seconds))].seconds / min(row.seconds for row in rows) - 1


def workloads(rows: Sequence[Row], at_least: int) -> list[list[Row]]:
    """Return groups of at least `at_least` rows that differ only in their layout."""
    groups: dict[tuple[float | str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.workload, []).append(row)
    return [group for group in groups.values() if len(group) >= at_least]


def _tree(errors: dict[str, Errors]) -> dict[str, Any]:
    return {"n": errors["seconds"].n, **{name: found._asdict() for name, found in errors.items()}}
