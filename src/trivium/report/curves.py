"""Aggregate the metrics of a training in memory that does not grow with their number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, cast

# Longer curves are thinned, because a browser cannot show more points than it has pixel columns.
MAX_CURVE_POINTS = 2000
_FIGURES = itemgetter("step", "tokens", "loss", "seconds", "lr", "sequences")


class Curve:
    """A series thinned to at most MAX_CURVE_POINTS + 1 evenly spaced records, the last one among them.

    Each record of a thinned series has the mean, least and greatest loss of the records that it stands for, so that
    no spike is lost.
    """

    def __init__(self) -> None:
        self._buckets: list[_Bucket] = []
        self._last: dict[str, Any] | None = None
        self._seen, self._every = 0, 1

    def add(self, record: dict[str, Any], loss: float = 0.0) -> None:
        """Add the next record. A full curve joins its buckets in pairs."""
        if self._seen % self._every:
            self._buckets[-1].add(1, loss, loss, loss)
        else:
            self._buckets.append(_Bucket(record, 1, loss, loss, loss))
            if len(self._buckets) > MAX_CURVE_POINTS:
                for bucket, other in zip(self._buckets[::2], self._buckets[1::2], strict=False):
                    bucket.add(other.count, other.total, other.least, other.greatest)
                self._buckets, self._every = self._buckets[::2], 2 * self._every
        self._last = record
        self._seen += 1

    def extend(self, records: Sequence[dict[str, Any]], losses: Sequence[float]) -> None:
        """Add records and their losses, all that one bucket takes at once."""
        done = 0
        while done < len(records):
            if room := -self._seen % self._every:
                part = losses[done : done + room]
                self._buckets[-1].add(len(part), sum(part), min(part), max(part))
                done, self._seen = done + len(part), self._seen + len(part)
            else:
                self.add(records[done], losses[done])
                done += 1
        self._last = records[-1]

    def points(self) -> list[dict[str, Any]]:
        """Return the kept records in order."""
        if self._every == 1:
            return [bucket.record for bucket in self._buckets]
        last = replace(self._buckets[-1], record=cast(dict[str, Any], self._last))
        kept = self._buckets if last.record is self._buckets[-1].record else [*self._buckets, last]
        return [
            {**b.record, "loss_mean": b.total / b.count, "loss_least": b.least, "loss_greatest": b.greatest}
            for b in kept
        ]


@dataclass(slots=True)
class _Bucket:
    """Consecutive records: the first of them, and aggregates of their losses."""

    record: dict[str, Any]
    count: int
    total: float
    least: float
    greatest: float

    def add(self, count: int, total: float, least: float, greatest: float) -> None:
        self.count += count
        self.total += total
        if least < self.least:
            self.least = least
        if greatest > self.greatest:
            self.greatest = greatest


@dataclass
class Steps:
    """Aggregates of all metrics, in memory that does not grow with their number."""

    done: int = 0
    tokens: int | None = None
    seconds: float = 0.0  # seconds of all steps, without validation and saves
    joules: float = 0.0  # energy of the steps in which it was measured
    validation_loss: float | None = None  # the newest one
    losses: Curve = field(default_factory=Curve)
    validation: Curve = field(default_factory=Curve)
    loads: Curve = field(default_factory=Curve)

    def add_plain(self, metrics: list[Any]) -> bool:
        """Add metrics that all have every figure of a step as a finite number, and return True. Return False, and add
        nothing, for others."""
        try:
            rows = [*map(_FIGURES, metrics)]
            steps, tokens, losses, seconds, *others = zip(*rows, strict=True)
            joules = sum(m.get("joules") or 0.0 for m in metrics)
            # The sums find missing figures, other types and NaN at once.
            total = joules + sum(map(sum, (steps, tokens, losses, seconds, *others)))
            if not math.isfinite(total) or any("validation_loss" in m or "experts" in m for m in metrics):
                return False
        except (KeyError, TypeError, OverflowError):
            return False
        self.done = max(self.done, *steps)
        self.tokens = int(max(self.tokens or 0, *tokens))
        self.seconds += sum(seconds)
        self.joules += joules
        self.losses.extend(metrics, losses)
        return True

    def add(self, metric: dict[str, Any]) -> None:
        layers = metric.pop("experts", None)
        if layers:
            told = {n: {name: load[name] for name in ("largest", "entropy", "dropped")} for n, load in layers.items()}
            self.loads.add({"step": metric["step"], "tokens": metric["tokens"], "layers": told})
        step, tokens, seconds, loss = metric["step"], metric["tokens"], metric["seconds"], metric["loss"]
        if step > self.done:
            self.done = step
        if tokens is not None and (self.tokens is None or tokens > self.tokens):
            self.tokens = int(tokens)
        if seconds is not None:
            self.seconds += seconds
        self.joules += metric.get("joules") or 0.0
        if loss is not None:
            self.losses.add(metric, loss)
        if metric.get("validation_loss") is not None:
            self.validation_loss = metric["validation_loss"]
            self.validation.add(metric, metric["validation_loss"])
