"""Communication derived from a schedule, never written by hand.

Every rank's list is a projection of one global order in which a transfer is a single event shared by its two
ends. Ranks that follow projections of one order cannot wait for each other in a circle, so no schedule can
deadlock, even if sends block until received.
"""

import itertools
from typing import NamedTuple

from trivium.plan.schedule import Action, Op, Schedule, forward, is_split, last_stage, rounds


class Transfer(NamedTuple):
    """The output of `produced_by` moves from pipeline rank `source` to pipeline rank `target`."""

    source: int
    target: int
    produced_by: Action

    def __str__(self) -> str:
        return f"{self.produced_by}:{self.source}>{self.target}"


Event = Action | Transfer
Program = tuple[tuple[Event, ...], ...]  # [pipeline rank][position]


def with_transfers(schedule: Schedule) -> Program:
    """The schedule with every send and receive in its place."""
    rank_of = {a: r for r, row in enumerate(schedule) for a in row}
    last, split = last_stage(schedule), is_split(schedule)
    programs: list[list[Event]] = [[] for _ in schedule]
    for action in itertools.chain.from_iterable(rounds(schedule)):
        here = rank_of[action]
        programs[here].append(action)
        reader = reader_of(action, last, split=split)
        if reader is not None and rank_of[reader] != here:
            transfer = Transfer(here, rank_of[reader], action)
            programs[here].append(transfer)
            programs[transfer.target].append(transfer)
    return tuple(map(tuple, programs))


def sends(schedule: Schedule, rank: int) -> int:
    """Return how many outputs of a rank are read on another one, which is the number of its sends."""
    own, last, split = {*schedule[rank]}, last_stage(schedule), is_split(schedule)
    readers = (reader_of(action, last, split=split) for action in schedule[rank])
    return sum(reader is not None and reader not in own for reader in readers)


def reader_of(action: Action, last: int, *, split: bool = False) -> Action | None:
    """The action on another stage that reads this one's output."""
    m, s = action.micro_batch, action.stage
    if action.op is Op.FORWARD:
        return forward(m, s + 1) if s < last else None
    if action.op is Op.WEIGHT_GRADIENT or s == 0:
        return None
    return Action(Op.INPUT_GRADIENT if split else Op.BACKWARD, m, s - 1)
