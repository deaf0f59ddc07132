"""Reports ranks that hold up the others: how long each worked, by phase, compared with ranks that have the same work.

The times are those of the CPU: the work of a GPU shows only where a rank waits for it.
"""

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trivium.checkpoint.agree import sums
from trivium.comms.mesh import Mesh
from trivium.plan.layout import Layout
from trivium.plan.schedule import Action
from trivium.tokens.rows import Rows
from trivium.training.batches import Read
from trivium.training.config import is_nth
from trivium.training.loop import Loop, Observer, StepSetup
from trivium.training.trainer import StepResult
from trivium.units import counted

MOST_REPORTED = 8  # slow ranks in one comparison; thousands may be
# reading: the rows of the batch. stages: forward and backward. update: gradients' last sums, and the optimizer.
PHASES = ("reading", "stages", "update")
# A difference below this share of all that a rank worked is not reported.
LEAST_SHARE = 0.1


class SlowRank(NamedTuple):
    """A rank, the phase in which it is slow, its seconds per step there, and the median of its peers."""

    rank: int
    phase: str
    seconds: float
    peers: float

    def __str__(self) -> str:
        return (
            f"rank {self.rank} is slow in `{self.phase}`: {self.seconds:.3g} s per step, median of its peers "
            f"{self.peers:.3g} s"
        )


class SlowRanks(Observer):
    """Compares the ranks every `training.supervision.slow_every` steps."""

    def __init__(self, mesh: Mesh) -> None:
        self._worked = Worked(mesh)

    def before_step(self, loop: Loop, setup: StepSetup) -> None:
        setup.read = self._worked.reading(setup.read)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self._worked.add(result)
        supervision = loop.config.supervision
        if not is_nth(loop.step, supervision.slow_every):
            return
        found = self._worked.slow_ranks(supervision.slow_factor)
        reported = sorted(found, key=lambda slow: slow.peers - slow.seconds)[:MOST_REPORTED]
        if len(found) > len(reported):
            loop.warn(f"step {loop.step}: {counted(len(found), 'rank')} are slow; those that lose most:")
        for slow in reported:
            loop.warn(f"step {loop.step}: {slow}")
            loop.note({"event": "slow rank", "step": loop.step, **slow._asdict()})


class Worked:
    """Seconds this rank worked since the last comparison, by phase; waiting for other ranks does not count."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._steps = 0
        self._waited = self._waits()

    def reading(self, read: Read) -> Read:
        """Return a reader that counts its time."""

        def timed(first: int, count: int) -> Rows:
            begin = time.perf_counter()
            rows = read(first, count)
            self._seconds["reading"] += time.perf_counter() - begin
            return rows

        return timed

    def add(self, result: StepResult) -> None:
        """Count a step. Waits along tensor and context ranks are in its stages, the others in its update."""
        now = self._waits()
        inside, outside = (b - a for a, b in zip(self._waited, now, strict=True))
        self._waited, self._steps = now, self._steps + 1
        spans = sum(s.end - s.start for s in result.run.spans if isinstance(s.event, Action))
        self._seconds["stages"] += max(0.0, spans - inside)
        self._seconds["update"] += max(0.0, result.update_seconds - outside)

    def slow_ranks(self, factor: float) -> list[SlowRank]:
        """Collective. Return the ranks that work more than `factor` times as long as their peers."""
        layout, steps = self.mesh.layout, max(1, self._steps)
        mine = [self._seconds[phase] / steps for phase in PHASES]
        here = range(self.mesh.rank * len(PHASES), (self.mesh.rank + 1) * len(PHASES))
        numbers = [0.0] * (layout.world_size * len(PHASES))
        numbers[here.start : here.stop] = mine
        every = sums(numbers, self.mesh)
        self._seconds, self._steps = dict.fromkeys(PHASES, 0.0), 0
        table = {phase: every[n :: len(PHASES)] for n, phase in enumerate(PHASES)}
        return slow_among(table, layout, factor)

    def _waits(self) -> tuple[float, float]:
        mesh = self.mesh
        of_gradients = {mesh.replicas, mesh.sharers, mesh.holders, mesh.ends}  # some of which may be one group
        return mesh.tensor.waited[0] + mesh.context.waited[0], sum(group.waited[0] for group in of_gradients)


def slow_among(table: Mapping[str, Sequence[float]], layout: Layout, factor: float) -> list[SlowRank]:
    """Return the slow ranks. table: seconds of every rank, by phase. Peers are the ranks of the same stages, or all."""
    found = []
    worked = [sum(seconds) for seconds in zip(*table.values(), strict=True)]
    sets = layout.peer_sets("data", "context", "tensor")
    for peers in sets if len(sets[0]) > 1 else [range(layout.world_size)]:
        for phase, seconds in table.items():
            ordered = sorted(seconds[r] for r in peers)
            for rank in peers if len(peers) > 1 else ():
                usual = median_of_others(ordered, seconds[rank])
                late = seconds[rank] - usual
                if seconds[rank] > factor * usual and late > LEAST_SHARE * worked[rank]:
                    found.append(SlowRank(rank, phase, seconds[rank], usual))
    return sorted(found, key=lambda slow: (slow.rank, PHASES.index(slow.phase)))


def median_of_others(ordered: Sequence[float], own: float) -> float:
    """Return the lower median of sorted numbers without one of them."""
    middle = (len(ordered) - 2) // 2
    return ordered[middle + (bisect_left(ordered, own) <= middle)]
