"""Reports what slows training down: ranks that work longer than their peers, and links on which all ranks wait.

All times are those of the CPU: the work of a GPU shows only where a rank waits for it. A rank's work does not include
its waits for other ranks. A rank that waits for a slow rank is no sign of a slow link, because the slow one does not
wait; so the time of a group's link is the minimum of its members' waits. Pipeline stages wait for one another's work:
the time of their link is at least the step less all their work and other waits, as if no two of them overlapped.
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
from trivium.units import counted, listed

MOST_REPORTED = 8  # slow ranks, and slow links, in one comparison; there may be thousands
# Work. reading: the rows of the batch. stages: forward and backward. update: gradient reduction and optimizer.
PHASES = ("reading", "stages", "update")
WAITS = ("tensor", "context", "experts", "gradients")
COLUMNS = (*PHASES, *WAITS, "step")
LEAST_SHARE = 0.1  # share of a rank's work; smaller differences are not reported
# The share of a step that a link takes when it is reported, and the share if steps also became slower.
SHARE, SHARE_OF_SLOWER = 0.75, 0.5
MIN_SECONDS = 0.05  # time of a link in a step; small models lack work, not bandwidth


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


class SlowLink(NamedTuple):
    """A group whose communication takes most of a step. usual_seconds: of the fastest comparison before, or 0."""

    link: str
    ranks: tuple[int, ...]
    seconds: float
    step_seconds: float
    usual_seconds: float

    def __str__(self) -> str:
        before = f", {self.usual_seconds:.3g} s before" if self.usual_seconds else ""
        return (
            f"communication is slow: {self.link} between ranks {listed(self.ranks)} took at least {self.seconds:.3g} s "
            f"of a step of {self.step_seconds:.3g} s{before}; look at the network between their hosts"
        )


class Slow(Observer):
    """Compares the ranks every `training.supervision.slow_every` steps."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._seconds, self._steps = dict.fromkeys(COLUMNS, 0.0), 0  # since the last comparison
        self._waited = self._waits()
        self._sequences, self._usual = 0, 0.0

    def before_step(self, loop: Loop, setup: StepSetup) -> None:
        setup.read = self.timed(setup.read)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self.add(result, loop.seconds, loop.plan.batch.at(loop.step - 1).sequences)
        supervision = loop.config.supervision
        if not is_nth(loop.step, supervision.slow_every):
            return
        ranks, links = self.compare(supervision.slow_factor)
        if len(ranks) > MOST_REPORTED:
            loop.warn(f"step {loop.step}: {counted(len(ranks), 'rank')} are slow; those that lose most:")
        for event, slow in (("slow rank", ranks), ("slow link", links)):
            for each in slow[:MOST_REPORTED]:
                loop.warn(f"step {loop.step}: {each}")
                loop.note({"event": event, "step": loop.step, **each._asdict()})

    def timed(self, read: Read) -> Read:
        """Return a reader that counts its time."""

        def timed(first: int, count: int) -> Rows:
            begin = time.perf_counter()
            rows = read(first, count)
            self._seconds["reading"] += time.perf_counter() - begin
            return rows

        return timed

    def add(self, result: StepResult, seconds: float, sequences: int) -> None:
        """Count a step. Its waits for gradients are in its update, and all others in its stages. A step with another
        batch size has no usual duration yet."""
        now = self._waits()
        *others, gradients = waited = [b - a for a, b in zip(self._waited, now, strict=True)]
        self._waited, self._steps = now, self._steps + 1
        if sequences != self._sequences:
            self._sequences, self._usual = sequences, 0.0
        spans = sum(s.end - s.start for s in result.run.spans if isinstance(s.event, Action))
        stages = max(0.0, spans - sum(others))
        update = max(0.0, result.update_seconds - gradients)
        for name, value in zip(COLUMNS[1:], (stages, update, *waited, seconds), strict=True):
            self._seconds[name] += value

    def compare(self, factor: float) -> tuple[list[SlowRank], list[SlowLink]]:
        """Return the slow ranks and the slow links, those that lose most first; every rank calls this.

        Links are compared only on CPUs, because these times do not include what a GPU waits for.
        """
        layout, width = self.mesh.layout, len(COLUMNS)
        numbers = [0.0] * (layout.world_size * width)
        at = self.mesh.rank * width
        numbers[at : at + width] = [total / max(1, self._steps) for total in self._seconds.values()]
        every = sums(numbers, self.mesh)
        self._seconds, self._steps = dict.fromkeys(COLUMNS, 0.0), 0
        table = {name: every[n::width] for n, name in enumerate(COLUMNS)}
        step_seconds, usual = sum(table.pop("step")) / layout.world_size, self._usual
        self._usual = min(usual or step_seconds, step_seconds)
        ranks = slow_ranks({phase: table[phase] for phase in PHASES}, layout, factor)
        on_cpu = self.mesh.device.type == "cpu"
        return ranks, slow_links(table, layout, step_seconds, usual, factor) if on_cpu else []

    def _waits(self) -> tuple[float, ...]:
        """Return the seconds of each of WAITS so far."""
        mesh = self.mesh
        # Some of these may be one group.
        of_experts = {mesh.expert_replicas, mesh.expert_sharers}
        of_gradients = {mesh.replicas, mesh.sharers, mesh.holders, mesh.ends, *of_experts}
        of_gradients -= {mesh.tensor, mesh.context}
        others = (group.waited[0] for group in (mesh.tensor, mesh.context, mesh.expert))
        return *others, sum(group.waited[0] for group in of_gradients)


def slow_ranks(table: Mapping[str, Sequence[float]], layout: Layout, factor: float) -> list[SlowRank]:
    """Return the ranks that work more than `factor` times as long as the median of their peers, those that lose most
    first. table: seconds of every rank, by phase. Peers are the ranks of the same stages, or all."""
    found = []
    worked = [sum(seconds) for seconds in zip(*table.values(), strict=True)]
    sets = layout.peer_sets("data", "context", "tensor")
    for peers in sets if len(sets[0]) > 1 else [range(layout.world_size)]:
        for phase, seconds in table.items():
            ordered = sorted(seconds[r] for r in peers)
            for rank in peers if len(peers) > 1 else ():
                usual = median_of_others(ordered, seconds[rank])
                if seconds[rank] > factor * usual and seconds[rank] - usual > LEAST_SHARE * worked[rank]:
                    found.append(SlowRank(rank, phase, seconds[rank], usual))
    return sorted(found, key=lambda slow: (slow.peers - slow.seconds, slow.rank, PHASES.index(slow.phase)))


def median_of_others(ordered: Sequence[float], own: float) -> float:
    """Return the lower median of sorted numbers without one of them."""
    middle = (len(ordered) - 2) // 2
    return ordered[middle + (bisect_left(ordered, own) <= middle)]


def slow_links(
    table: Mapping[str, Sequence[float]], layout: Layout, step_seconds: float, usual: float, factor: float
) -> list[SlowLink]:
    """Return the slow links, the worst first. table: seconds per step of every rank, by phase and kind of wait."""
    slower = usual > 0 and step_seconds > factor * usual
    least = max(MIN_SECONDS, (SHARE_OF_SLOWER if slower else SHARE) * step_seconds)
    sets = (layout.peer_sets("tensor"), layout.peer_sets("context"), layout.expert_sets())
    waits = [
        (link, tuple(ranks), min(table[link][rank] for rank in ranks))
        for link, groups in zip(WAITS, (*sets, layout.peer_sets("data", "context")), strict=True)
        for ranks in groups
    ]
    busy = [*PHASES[1:], *WAITS]
    waits += [
        ("pipeline", tuple(ranks), step_seconds - sum(table[name][rank] for name in busy for rank in ranks))
        for ranks in layout.peer_sets("pipeline")
    ]
    found = [each for each in waits if len(each[1]) > 1 and each[2] > least]
    return [SlowLink(*each, step_seconds, usual) for each in sorted(found, key=lambda each: -each[2])]
