"""Reports groups of ranks that lose their time in communication: all members wait at once, and none works.

A rank that waits for a slow one is no sign of a slow link, because the slow one does not wait. So the time of a group's
link is the least that any of its members waited. Pipeline stages wait for one another's work: the time of their link is
at least the step less all their work and their other waits, as if no two of them had worked at once.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trivium.checkpoint.agree import sums
from trivium.comms.mesh import Mesh
from trivium.plan.layout import Axis, Layout
from trivium.plan.schedule import Action
from trivium.training.config import is_nth
from trivium.training.loop import Loop, Observer
from trivium.training.trainer import StepResult
from trivium.units import listed

COLUMNS = ("work", "tensor", "context", "gradients")
AXES_OF: Mapping[str, tuple[Axis, ...]] = {
    "tensor": ("tensor",),
    "context": ("context",),
    "gradients": ("data", "context"),
}
# The share of a step that a link takes when it is reported, and the share where steps became slower, too.
SHARE, SHARE_OF_SLOWER = 0.75, 0.5
LEAST_SECONDS = 0.05  # a step; small models are short of work, and not of bandwidth
MOST_REPORTED = 8  # slow links in one comparison


class SlowLink(NamedTuple):
    """A group whose communication takes most of a step. usual_seconds: of the fastest comparison before; 0: none."""

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


class SlowLinks(Observer):
    """Compares the groups every `training.supervision.slow_every` steps."""

    def __init__(self, mesh: Mesh) -> None:
        self._waited = Waited(mesh)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self._waited.add(result, loop.seconds, loop.plan.batch.at(loop.step - 1).sequences)
        supervision = loop.config.supervision
        if is_nth(loop.step, supervision.slow_every):
            for link in self._waited.slow_links(supervision.slow_factor)[:MOST_REPORTED]:
                loop.warn(f"step {loop.step}: {link}")
                loop.note({"event": "slow link", "step": loop.step, **link._asdict()})


class Waited:
    """Seconds this rank worked and waited for each kind of group since the last comparison."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._totals, self._step_seconds, self._steps = dict.fromkeys(COLUMNS, 0.0), 0.0, 0
        self._before = self._waits()
        self._sequences, self._usual = 0, 0.0

    def add(self, result: StepResult, seconds: float, sequences: int) -> None:
        """Count a step of so many sequences. One of another batch is compared with none before."""
        now = self._waits()
        waits = [b - a for a, b in zip(self._before, now, strict=True)]
        self._before = now
        if sequences != self._sequences:
            self._sequences, self._usual = sequences, 0.0
        spans = sum(s.end - s.start for s in result.run.spans if isinstance(s.event, Action))
        tensor, context, gradients = waits
        work = max(0.0, spans - tensor - context) + max(0.0, result.update_seconds - gradients)
        for name, value in zip(COLUMNS, (work, *waits), strict=True):
            self._totals[name] += value
        self._step_seconds, self._steps = self._step_seconds + seconds, self._steps + 1

    def slow_links(self, factor: float) -> list[SlowLink]:
        """Collective. Return the groups whose communication is slow, the worst first.

        Only on CPUs: these times do not include what a GPU waits for.
        """
        world, width, steps = self.mesh.layout.world_size, len(COLUMNS), max(1, self._steps)
        numbers = [0.0] * (world * width + 1)
        at = self.mesh.rank * width
        numbers[at : at + width] = [total / steps for total in self._totals.values()]
        numbers[-1] = self._step_seconds / steps / world
        *every, step_seconds = sums(numbers, self.mesh)
        self._totals, self._step_seconds, self._steps = dict.fromkeys(COLUMNS, 0.0), 0.0, 0
        usual = self._usual
        self._usual = min(usual or step_seconds, step_seconds)
        if self.mesh.device.type != "cpu":
            return []
        table = {name: every[n::width] for n, name in enumerate(COLUMNS)}
        return slow_in(table, self.mesh.layout, step_seconds, usual, factor)

    def _waits(self) -> tuple[float, float, float]:
        mesh = self.mesh
        of_gradients = {mesh.replicas, mesh.sharers, mesh.holders, mesh.ends}  # some of which may be one group
        gradients = sum(g.waited[0] for g in of_gradients - {mesh.tensor, mesh.context})
        return mesh.tensor.waited[0], mesh.context.waited[0], gradients


def slow_in(
    table: Mapping[str, Sequence[float]], layout: Layout, step_seconds: float, usual: float, factor: float
) -> list[SlowLink]:
    """Return the slow links, the worst first. table: seconds a step of every rank, by COLUMNS."""
    slower = usual > 0 and step_seconds > factor * usual
    least = max(LEAST_SECONDS, (SHARE_OF_SLOWER if slower else SHARE) * step_seconds)
    found = []
    for link, axes in AXES_OF.items():
        for ranks in layout.peer_sets(*axes):
            if len(ranks) > 1 and (seconds := min(table[link][rank] for rank in ranks)) > least:
                found.append((link, tuple(ranks), seconds))
    for ranks in layout.peer_sets("pipeline"):
        seconds = step_seconds - sum(column[rank] for column in table.values() for rank in ranks)
        if len(ranks) > 1 and seconds > least:
            found.append(("pipeline", tuple(ranks), seconds))
    return [SlowLink(*each, step_seconds, usual) for each in sorted(found, key=lambda each: -each[2])]
