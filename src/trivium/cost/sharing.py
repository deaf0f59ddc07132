"""Time of a pipeline whose ranks share the cores of one host.

A rank that waits for a message does not need a core. Ranks that communicate in every layer (tensor, context) wait
together as one group. Other groups compute during these waits if a core is free.
"""

from typing import NamedTuple

import numpy as np

from trivium.cost.case import Case
from trivium.cost.hardware import Machine
from trivium.cost.prices import Piece
from trivium.plan.layers.part import Number

MIN_SECONDS = 1e-30  # avoids a division by zero


class Shared(NamedTuple):
    """Seconds of a step's pipeline on shared cores. The parts add up to `seconds`."""

    work: Piece
    bubble: Number
    transfers: Number

    @property
    def seconds(self) -> Number:
        return self.work.total + self.bubble + self.transfers


def on_shared_cores(
    machine: Machine, case: Case, mean: Piece, alone: Number, transfers: Number, core_share: float
) -> Shared:
    """Return the seconds of a step's pipeline when ranks share cores.

    mean: seconds of a rank's work with a core of its own, over all its micro-batches and averaged over pipeline ranks.
    alone: seconds of the pipeline with a core per rank, `transfers` of them in transfers. core_share: fraction of a
    collective's time in which a rank needs a core.

    A single group takes `path` seconds and uses its cores for `held` of them. All groups together need at least
    `needed` seconds. A group finds its core busy with the probability that one group holds it, and then waits for the
    others. This is exact for one group, for groups that never wait, and for many groups; for two groups it is their
    closed queue.
    """
    messages = mean.total - mean.compute
    of_core = mean.compute + core_share * messages
    own, crowd = machine.crowding(case.tensor * case.context), machine.crowding(case.ranks)
    path, held, needed = own * alone, own * of_core, crowd * of_core
    seconds = np.maximum(needed, path + (needed - held) * np.minimum(1.0, held / path))
    idle = seconds - needed
    waiting = np.minimum(idle, own * (1 - core_share) * messages)
    moving = np.minimum(idle - waiting, own * transfers)
    longer = crowd * core_share + np.where(messages > 0, waiting / np.maximum(messages, MIN_SECONDS), 0.0)
    spent = Piece(crowd * mean.compute, *(longer * seconds_of for seconds_of in mean[1:]))
    return Shared(spent, idle - waiting - moving, moving)
