"""Simulate many schedules at once by the rules of timeline.simulate, and return only their durations.

All ranks of all runs advance together. In each round, a rank performs its next action if the input has arrived. The
times are exact, because the start of an action depends only on its rank and its input. Long steps are extrapolated:
once two periods of the steady phase are equal on every rank up to one shift of time, all further periods are equal as
well, because each depends only on the previous one. Each omitted period prolongs the step by that shift.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.cost.orders import Array, Order, order_of
from trivium.errors import ConfigError
from trivium.plan.schedule import ScheduleName

Seconds = NDArray[np.float64]

START, NEVER = 0, 1  # places of every run's times: the input of a first action, and of none after the last
ROUNDS_PER_CHECK = 32  # rounds between looks at which ranks have ended
EQUAL_FRACTION = 1e-12  # relative difference of times that is rounding


@dataclass(frozen=True, eq=False)
class Run:
    """One schedule to simulate. seconds: [operation, stage], operations as in Order.ops. transfer: seconds between
    ranks."""

    name: ScheduleName
    pipeline: int
    micro_batches: int
    chunks: int
    seconds: Seconds
    transfer: float = 0.0

    @property
    def period(self) -> int:
        """Micro-batches after which the steady phase repeats."""
        return self.pipeline if self.name == "interleaved" else 1

    def of(self, micro_batches: int) -> Order:
        """Return the order of a step with `micro_batches` micro-batches."""
        return order_of(self.name, self.pipeline, micro_batches, self.chunks)


def finish_seconds(runs: Sequence[Run]) -> Seconds:
    """Return the duration of each run in seconds, equal to timeline.simulate(...).duration."""
    found = np.zeros(len(runs))
    waiting = {n: _first_length(run) for n, run in enumerate(runs)}
    while waiting:
        orders = [runs[n].of(length) for n, length in waiting.items()]
        times = end_times(orders, [runs[n] for n in waiting])
        longer: dict[int, int] = {}
        for (n, length), order, ends in zip(waiting.items(), orders, times, strict=True):
            run, end = runs[n], float(ends.max())
            left = run.micro_batches - length
            shift = _steady_shift(run, order, ends) if left else 0.0
            if shift is None:
                longer[n] = min(run.micro_batches, length + _rounded(2 * length, run))
            else:
                found[n] = end + left // run.period * shift
        waiting = longer
    return found


def end_times(orders: Sequence[Order], runs: Sequence[Run]) -> list[Seconds]:
    """Return the end of every action of each order: [rank, position]."""
    tables = {id(order): order for order in orders}
    starts, offset = {}, 0
    for key, order in tables.items():
        starts[key], offset = offset, offset + order.kinds.shape[0] * (order.kinds.shape[1] + 1)
    packed = np.concatenate([_packed(order) for order in tables.values()])
    sizes = [2 + order.kinds.max() * order.micro_batches + order.micro_batches for order in orders]
    bases = np.concatenate([[0], np.cumsum(sizes)])
    times = np.full(bases[-1], np.inf)
    times[bases[:-1] + START] = -np.inf
    seconds = np.concatenate([run.seconds.ravel() for run in runs])
    seconds_of = np.concatenate([[0], np.cumsum([run.seconds.size for run in runs])])
    ranks = np.array([len(order.kinds) for order in orders])
    at = np.concatenate([starts[id(o)] + np.arange(len(o.kinds)) * (o.kinds.shape[1] + 1) for o in orders])
    _advance(
        packed,
        at,
        np.repeat(bases[:-1], ranks),
        np.repeat(seconds_of[:-1], ranks),
        np.repeat([run.transfer for run in runs], ranks),
        times,
        seconds,
    )
    return [
        times[base + 2 + order.kinds * order.micro_batches + order.numbers]
        for base, order in zip(bases[:-1], orders, strict=True)
    ]


def _advance(
    packed: Array, at: Array, base: Array, kinds: Array, transfer: Seconds, times: Seconds, seconds: Seconds
) -> None:
    """Fill `times`. at: position in `packed` of every rank of every run. base, kinds: where the times and seconds of
    its run start."""
    free = np.zeros(len(at))
    rounds = 0
    while len(at):
        own, needs, kind = packed.take(at, axis=0).T
        end = np.maximum(free, times.take(needs + base) + transfer) + seconds.take(kind + kinds)
        times[own + base] = end
        done = end < np.inf
        at = at + done
        free = np.where(done, end, free)
        rounds += 1
        if rounds % ROUNDS_PER_CHECK == 0:
            going = packed[at, 0] != NEVER
            if going.any() and not done.any():
                raise ConfigError(
                    f"the schedule deadlocks: {int(going.sum())} ranks wait for each other; reorder their actions"
                )
            at, base, kinds, transfer, free = (a[going] for a in (at, base, kinds, transfer, free))


def _packed(order: Order) -> Array:
    """Return [rank x (position + 1), 3]: index of the action's time, index of its input's time, kind. Rows end with
    NEVER."""
    stages, m = order.stages, order.micro_batches
    kinds = order.kinds
    op, stage = np.divmod(kinds, stages)
    back = 1  # B, or I of a split backward
    reader = np.where(op == 0, stage - 1, np.where(op == back, stage + 1, -1))
    inside = (reader >= 0) & (reader < stages)
    rank = np.arange(len(kinds))[:, None]
    # Inputs from the rank itself are available, because they precede the action in its row.
    crosses = inside & (order.rank_of[np.where(inside, reader, 0)] != rank)
    needs = np.where(crosses, 2 + (op * stages + reader) * m + order.numbers, START)
    table = np.full((kinds.shape[0], kinds.shape[1] + 1, 3), NEVER)
    table[:, :-1] = np.stack([2 + kinds * m + order.numbers, needs, kinds], axis=-1)
    return table.reshape(-1, 3)


def _first_length(run: Run) -> int:
    """Return the length of a step in which the steady phase usually settles; otherwise a longer step is simulated."""
    return min(run.micro_batches, _rounded(3 * run.pipeline + 8, run))


def _rounded(micro_batches: int, run: Run) -> int:
    """Round up so that the omitted part of the step is a whole number of periods."""
    left = max(0, run.micro_batches - micro_batches)
    return run.micro_batches - left // run.period * run.period


def _steady_shift(run: Run, order: Order, ends: Seconds) -> float | None:
    """Return by how many seconds each further period prolongs the step; None if the steady phase has not settled.

    A row of a longer step is this row with a period inserted at its cut. Actions after the cut need no input older than
    one period before it (tests/cost/wavefront_test.py), so it suffices to compare that period.
    """
    longer, length = run.of(order.micro_batches + run.period).kinds, order.kinds.shape[1]
    width = longer.shape[1] - length
    differs = longer[:, :length] != order.kinds
    cut = np.where(differs.any(axis=1), differs.argmax(axis=1), length)[:, None]
    if cut.min() < 2 * width:
        return None
    periods = np.take_along_axis(longer, cut + np.arange(-2 * width, width), axis=1)
    alike = periods[:, width:] == periods[:, :-width]
    rest = np.where(np.arange(length) < cut, longer[:, :length], longer[:, width:]) == order.kinds
    if not (alike.all() and rest.all()):  # gpipe: both its phases grow
        return None
    window = np.take_along_axis(ends, cut + np.arange(-2 * width, 0), axis=1)
    shifts = window[:, width:] - window[:, :-width]
    shift = float(shifts.mean())
    return shift if np.abs(shifts - shift).max() <= EQUAL_FRACTION * ends.max() else None
