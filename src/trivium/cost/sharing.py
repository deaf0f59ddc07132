"""Ranks that share the cores of one machine: each has a core for a part of the time only.

While a rank waits for a message it needs no core. Ranks that talk in every layer (tensor, context) wait together, and
are one group; groups fill each other's waits as far as they find a core free.
"""

from typing import NamedTuple

import numpy as np

from trivium.cost.case import Case
from trivium.cost.hardware import Machine
from trivium.cost.prices import Piece
from trivium.plan.layers.part import Number

TINY = 1e-30  # seconds; only keeps a division by nothing away


class Shared(NamedTuple):
    """Seconds of a step's pipeline on shared cores: what they are spent on. They add up."""

    work: Piece
    bubble: Number
    transfers: Number

    @property
    def seconds(self) -> Number:
        return self.work.total + self.bubble + self.transfers


def on_shared_cores(
    machine: Machine, case: Case, mean: Piece, alone: Number, transfers: Number, core_share: float
) -> Shared:
    """The pipeline of a step when ranks share cores.

    mean: seconds of a rank's work, over all its micro-batches and averaged over pipeline ranks, with a core of its own.
    alone: of the pipeline then, `transfers` of it in transfers. core_share: the part of a collective's time in which a
    rank needs a core.

    A group alone takes `path`, and holds its cores for `held` of that. All groups together need `needed`, which is the
    least. A group finds its core taken as often as one group holds it, and then waits for the others: for one group,
    for groups that never wait, and for many groups this is exact; for two groups it is their closed queue.
    """
    messages = mean.total - mean.compute
    of_core = mean.compute + core_share * messages
    own, crowd = _ranks_per_core(machine, case.tensor * case.context), _ranks_per_core(machine, case.ranks)
    path, held, needed = own * alone, own * of_core, crowd * of_core
    seconds = np.maximum(needed, path + (needed - held) * np.minimum(1.0, held / path))
    idle = seconds - needed
    waiting = np.minimum(idle, own * (1 - core_share) * messages)
    moving = np.minimum(idle - waiting, own * transfers)
    longer = crowd * core_share + np.where(messages > 0, waiting / np.maximum(messages, TINY), 0.0)
    spent = Piece(crowd * mean.compute, *(longer * seconds_of for seconds_of in mean[1:]))
    return Shared(spent, idle - waiting - moving, moving)


def _ranks_per_core(machine: Machine, ranks: Number) -> Number:
    """How many of so many ranks want each core at once, and at least one."""
    return np.maximum(1.0, np.asarray(ranks) / machine.devices)
