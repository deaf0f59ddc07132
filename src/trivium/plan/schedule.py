"""Pipeline schedules as data: for each pipeline rank, the actions it performs in order.

The runtime executes the table, the planner times it, the tests check it, `render` draws it, and none of them
knows how a table was made.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

from trivium.errors import ConfigError
from trivium.plan.list_scheduling import Job, in_order
from trivium.units import listed

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "1f1b-split", "zb-turns", "given"]
# Those that are made by a rule in which every micro-batch goes the same way.
SCHEDULE_NAMES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "1f1b-split")
# Those whose backward comes in two parts.
SPLIT_SCHEDULES: tuple[ScheduleName, ...] = ("zb-h1", "zb-v", "1f1b-split", "zb-turns")
HEAD_UNITS = 8  # units of the head's length in the forward of a stage
# A stage's two gradients, in the same unit. Were all three alike, ranks would go in lockstep: every delay would last.
GRADIENT_UNITS = 9
Each = TypeVar("Each")


class Op(StrEnum):
    """FORWARD; BACKWARD of inputs and weights together; or of each apart (zero-bubble schedules)."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"


class Action(NamedTuple):
    """One stage's work on one micro-batch, written `F2.0`: op, micro-batch, stage."""

    op: Op
    micro_batch: int
    stage: int

    def __str__(self) -> str:
        return f"{self.op.value}{self.micro_batch}.{self.stage}"


Row = tuple[Action, ...]
Schedule = tuple[Row, ...]  # [pipeline rank][position]


def forward(micro_batch: int, stage: int) -> Action:
    """The forward of one stage on one micro-batch."""
    return Action(Op.FORWARD, micro_batch, stage)


def backward(micro_batch: int, stage: int) -> Action:
    """The whole backward of one stage on one micro-batch."""
    return Action(Op.BACKWARD, micro_batch, stage)


def make_schedule(
    name: ScheduleName, *, pipeline: int, micro_batches: int, chunks: int = 1, head: int = HEAD_UNITS
) -> Schedule:
    """The table of a named schedule. head: where it is a stage of its own, its length in eighths of another's
    forward."""
    match name:
        case "gpipe":
            return gpipe(pipeline, micro_batches)
        case "1f1b":
            return one_forward_one_backward(pipeline, micro_batches)
        case "interleaved":
            return interleaved(pipeline, micro_batches, chunks)
        case "zb-h1":
            return zero_bubble_h1(pipeline, micro_batches)
        case "zb-v":
            return zero_bubble_v(pipeline, micro_batches)
        case "1f1b-split":
            return in_two_parts(one_forward_one_backward(pipeline, micro_batches))
        case "zb-turns":
            return zero_bubble_turns(pipeline, micro_batches, head)
        case "given":
            raise ConfigError(f"schedule 'given' for {pipeline} ranks is not made but given: see plan.rows")


def input_gradient(micro_batch: int, stage: int) -> Action:
    """The part of a backward that the previous stage waits for."""
    return Action(Op.INPUT_GRADIENT, micro_batch, stage)


def weight_gradient(micro_batch: int, stage: int) -> Action:
    """The part of a backward for which nobody waits."""
    return Action(Op.WEIGHT_GRADIENT, micro_batch, stage)


def stages_of_ranks(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """The stages each pipeline rank holds, ascending, read off the table."""
    return tuple(tuple(sorted({a.stage for a in row})) for row in schedule)


@lru_cache(maxsize=1024)
def stages_of_named(name: ScheduleName, pipeline: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """`stages_of_ranks` of a named schedule; remembered, because pricing asks thousands of times."""
    if name in ("zb-v", "zb-turns"):
        head = (2 * pipeline,) if name == "zb-turns" else ()
        return tuple((rank, 2 * pipeline - 1 - rank, *head) for rank in range(pipeline))
    return tuple(tuple(range(rank, pipeline * chunks, pipeline)) for rank in range(pipeline))


def last_stage(schedule: Schedule) -> int:
    """The stage that computes the loss."""
    return max(a.stage for row in schedule for a in row)


def inputs(action: Action, last: int, *, split: bool = False) -> tuple[Action, ...]:
    """Return the actions that must precede `action`. split: the backward is in two parts."""
    m, s = action.micro_batch, action.stage
    if action.op is Op.FORWARD:
        return (forward(m, s - 1),) if s > 0 else ()
    if action.op is Op.WEIGHT_GRADIENT:
        return (Action(Op.INPUT_GRADIENT, m, s),)
    if s == last:
        return (forward(m, s),)
    return (forward(m, s), Action(Op.INPUT_GRADIENT if split else Op.BACKWARD, m, s + 1))


def ops(*, split: bool) -> tuple[Op, ...]:
    """Return the operations of each stage on each micro-batch. split: the backward is in two parts."""
    return (Op.FORWARD, Op.INPUT_GRADIENT, Op.WEIGHT_GRADIENT) if split else (Op.FORWARD, Op.BACKWARD)


def is_split(schedule: Schedule) -> bool:
    """Whether the backward comes in two parts."""
    return any(a.op is Op.INPUT_GRADIENT for row in schedule for a in row)


def rounds(schedule: Schedule) -> Iterator[list[Action]]:
    """Lockstep execution: each round, one action per rank whose inputs came from earlier rounds.

    Raises ConfigError if the schedule cannot finish, naming where each rank is stuck.
    """
    last, split = last_stage(schedule), is_split(schedule)
    waiting = [list(reversed(row)) for row in schedule]
    done: set[Action] = set()
    while any(waiting):
        ready = [row.pop() for row in waiting if row and done.issuperset(inputs(row[-1], last, split=split))]
        if not ready:
            stuck = ", ".join(f"rank {r} at {row[-1]}" for r, row in enumerate(waiting) if row)
            raise ConfigError(f"the schedule deadlocks: {stuck} can never start; reorder its actions")
        done.update(ready)
        yield ready


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """Return the schedule with all forwards before all backwards. It is the simplest and keeps every activation."""
    return tuple(
        tuple(forward(m, r) for m in range(micro_batches)) + tuple(backward(m, r) for m in range(micro_batches))
        for r in range(ranks)
    )


def one_forward_one_backward(ranks: int, micro_batches: int) -> Schedule:
    """1F1B: a rank holds at most `ranks - rank` activations (PipeDream-flush; MT-NLG section 2)."""
    return tuple(
        tuple(
            alternate(
                [forward(m, r) for m in range(micro_batches)],
                [backward(m, r) for m in range(micro_batches)],
                warmup=ranks - r - 1,
            )
        )
        for r in range(ranks)
    )


def in_two_parts(schedule: Schedule) -> Schedule:
    """Return the schedule with each backward split into an input-gradient (I) and a weight-gradient (W) action. I runs
    first, so that the previous stage can continue earlier, at the same peak memory. The bubble of 1F1B is then (p -
    1)(F + I), without W."""
    return tuple(tuple(part for action in row for part in _parts(action)) for row in schedule)


def interleaved(ranks: int, micro_batches: int, chunks: int) -> Schedule:
    """1F1B over `chunks` stages per rank: the bubble shrinks by a factor `chunks` (SC'21, section 2.2)."""
    if micro_batches % ranks:
        raise ConfigError(
            f"an interleaved schedule needs micro-batches ({micro_batches}) in multiples of pipeline ({ranks})"
        )
    # Each group of `ranks` micro-batches passes chunk 0, then chunk 1, and so on.
    order = [
        (m, c) for first in range(0, micro_batches, ranks) for c in range(chunks) for m in range(first, first + ranks)
    ]
    return tuple(
        tuple(
            alternate(
                [forward(m, c * ranks + r) for m, c in order],
                [backward(m, (chunks - 1 - c) * ranks + r) for m, c in order],
                warmup=2 * (ranks - r - 1) + (chunks - 1) * ranks,
            )
        )
        for r in range(ranks)
    )


def alternate(forwards: Sequence[Each], backwards: Sequence[Each], *, warmup: int) -> list[Each]:
    """`warmup` forwards, then one forward and one backward in turn, then the rest."""
    warmup = min(warmup, len(forwards))
    turns = zip(forwards[warmup:], backwards, strict=False)
    rest = backwards[len(forwards) - warmup :]
    return [*forwards[:warmup], *itertools.chain.from_iterable(turns), *rest]


def zero_bubble_h1(ranks: int, micro_batches: int) -> Schedule:
    """ZB-H1 (arXiv 2401.10241): 1F1B whose rank r puts r weight gradients off into its idle time.

    Holds what 1F1B holds on its first rank; the bubble is (p - 1)(F + I - W) instead of (p - 1)(F + I + W).
    """
    return tuple(_zero_bubble_h1_row(ranks, micro_batches, r) for r in range(ranks))


def zero_bubble_v(ranks: int, micro_batches: int) -> Schedule:
    """ZB-V (arXiv 2405.15362): two stages per rank, down the ranks and back up, so that both ends of the model
    are on rank 0 and every rank holds as much: at most 2 x ranks stage activations."""
    return tuple(_zero_bubble_v_row(ranks, micro_batches, r) for r in range(ranks))


def head_rank(micro_batch: int, ranks: int) -> int:
    """Return the pipeline rank that runs the head of a micro-batch (round-robin)."""
    return (micro_batch + 1) % ranks


@lru_cache(maxsize=64)
def zero_bubble_turns(ranks: int, micro_batches: int, head: int) -> Schedule:
    """ZB-V whose head, with the loss, is a stage of its own that every rank holds and takes in turn (`head_rank`).

    Where the vocabulary is large, the rank of the last layers has more to do than all others, who wait for it; here
    each has the same share. The order is by list scheduling: gradients of inputs first, then forwards, of the earliest
    micro-batch each, and weight gradients when there is nothing else. A rank holds at most 2 x ranks + 2 stage
    activations, two more than ZB-V's, and one head's.
    head: its length, in eighths of a stage's forward.
    """
    last, units = 2 * ranks, dict.fromkeys(ops(split=True), GRADIENT_UNITS) | {Op.FORWARD: HEAD_UNITS}
    urgency = {Op.INPUT_GRADIENT: 0, Op.FORWARD: 1, Op.WEIGHT_GRADIENT: 2}

    def job(action: Action) -> Job[Action]:
        op, m, stage = action
        kind = "head" if stage == last else "stage"
        return Job(
            name=action,
            rank=head_rank(m, ranks) if stage == last else min(stage, last - 1 - stage),
            length=head if stage == last else units[op],
            needs=inputs(action, last, split=True),
            urgency=(urgency[op], m, stage if op is Op.INPUT_GRADIENT else -stage),
            takes=kind if op is Op.FORWARD else None,
            gives=kind if op is Op.WEIGHT_GRADIENT else None,
            leaves=int(stage < ranks),  # or those that come back up would find no place, and nothing would end
        )

    every = itertools.product(ops(split=True), range(micro_batches), range(last + 1))
    return in_order((job(Action(*parts)) for parts in every), ranks, {"stage": last + 2, "head": 1})


def parse_schedule(rows: Sequence[str]) -> Schedule:
    """A table from text, one row per pipeline rank as `render` writes them (with or without "rank 0:")."""
    return tuple(tuple(map(_parse_action, row.rpartition(":")[2].split())) for row in rows)


def table_problems(schedule: Schedule, *, pipeline: int, stages: int, micro_batches: int) -> list[str]:
    """Return why a table cannot be run: actions are missing, occur twice or on two ranks, or can never start."""
    if len(schedule) != pipeline:
        return [f"plan.rows has {len(schedule)} rows; plan.layout.pipeline is {pipeline}, and each rank has one"]
    actions = Counter(a for row in schedule for a in row)
    rank_of_stage = {(r, a.stage) for r, row in enumerate(schedule) for a in row}
    every = ops(split=is_split(schedule))
    wanted = {Action(op, m, s) for op in every for m in range(micro_batches) for s in range(stages)}
    found = []
    for told, wrong in (
        ("lacks", sorted(wanted - actions.keys())),
        ("has, beyond what the plan asks,", sorted(actions.keys() - wanted)),
        ("has more than once", sorted(a for a, n in actions.items() if n > 1)),
    ):
        if wrong:
            some = ", ".join(map(str, wrong[:4])) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
            found.append(f"plan.rows {told} {some}; a step has {micro_batches} micro-batches on {stages} stages")
    idle = [rank for rank, row in enumerate(schedule) if not row]
    if idle:
        found.append(
            f"plan.rows gives pipeline rank {listed(idle)} no action; each holds one or more of the {stages} stages: "
            f"move the actions of a stage there"
        )
    if len(rank_of_stage) != len({s for _, s in rank_of_stage}):
        found.append(f"plan.rows puts one stage on several ranks: (rank, stage) {sorted(rank_of_stage)[:6]}")
    if not found:
        try:
            list(rounds(schedule))
        except ConfigError as error:
            found.append(f"plan.rows: {error}")
    return found


def render(schedule: Schedule) -> str:
    """One line per rank, as text."""
    return "\n".join(f"rank {r}: " + " ".join(map(str, row)) for r, row in enumerate(schedule))


def _parts(action: Action) -> tuple[Action, ...]:
    if action.op is not Op.BACKWARD:
        return (action,)
    return action._replace(op=Op.INPUT_GRADIENT), action._replace(op=Op.WEIGHT_GRADIENT)


def _zero_bubble_h1_row(ranks: int, micro_batches: int, rank: int) -> Row:
    row = [forward(m, rank) for m in range(min(ranks - rank - 1, micro_batches))]
    for m in range(micro_batches):
        ahead = m + ranks - rank - 1
        row += [forward(ahead, rank)] if ahead < micro_batches else []
        row.append(input_gradient(m, rank))
        row += [weight_gradient(m - rank, rank)] if m >= rank else []
    late = range(max(0, micro_batches - rank), micro_batches)
    return tuple(row + [weight_gradient(m, rank) for m in late])


class _Turns:
    """A rank's row under construction: each call adds the next micro-batch's action, if there is one."""

    def __init__(self, micro_batches: int) -> None:
        self.micro_batches = micro_batches
        self.row: list[Action] = []
        self.done: Counter[tuple[Op, int]] = Counter()

    def add(self, words: str, *stages: int) -> None:
        """Add actions by their letters, one stage each: add("FI", 3, 0)."""
        for letter, stage in zip(words, stages, strict=True):
            op = Op(letter)
            m = self.done[op, stage]
            if m < self.micro_batches and (op is not Op.WEIGHT_GRADIENT or m < self.done[Op.INPUT_GRADIENT, stage]):
                self.row.append(Action(op, m, stage))
                self.done[op, stage] += 1

    def left(self, letter: str, stage: int) -> bool:
        """Whether a stage still has such actions to do."""
        return self.done[Op(letter), stage] < self.micro_batches


def _zero_bubble_v_row(ranks: int, micro_batches: int, rank: int) -> Row:
    down, up = rank, 2 * ranks - 1 - rank
    turns = _Turns(micro_batches)
    for _ in range(2 * (ranks - rank) - 1):  # fill the way down
        turns.add("F", down)
    for _ in range(rank):  # the first micro-batches come back up
        turns.add("FF", up, down)
    for _ in range(ranks - rank):
        turns.add("FIW", up, up, up)
    while turns.left("F", down) or turns.left("F", up):  # steady
        turns.add("FIWFIW", down, down, down, up, up, up)
    for _ in range(rank):  # drain: first what others wait for
        turns.add("II", down, up)
    for _ in range(ranks - rank):
        turns.add("IW", down, down)
    for stage in (up, down):
        while turns.left("W", stage):
            turns.add("IW", stage, stage)
    return tuple(turns.row)


def _parse_action(text: str) -> Action:
    match = re.fullmatch(r"([FBIW])(\d+)\.(\d+)", text)
    if match is None:
        raise ConfigError(f"'{text}' is not an action; write F, B, I or W, a micro-batch, a dot and a stage, as F2.0")
    return Action(Op(match[1]), int(match[2]), int(match[3]))
