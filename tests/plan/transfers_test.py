"""Messages in the order of a program hold up nothing: a pipeline is as long as its actions make it."""

from collections.abc import Iterator

import pytest

from trivium.plan.schedule import Action, Op, Schedule, inputs, is_split, last_stage, make_schedule
from trivium.plan.transfers import Transfer, with_transfers

SECONDS = {Op.FORWARD: 1, Op.BACKWARD: 2, Op.INPUT_GRADIENT: 1, Op.WEIGHT_GRADIENT: 1}
CASES = [
    ("gpipe", 4, 8, 1), ("1f1b", 2, 8, 1), ("1f1b", 4, 8, 1), ("1f1b", 8, 32, 1), ("1f1b-split", 8, 24, 1),
    ("interleaved", 4, 8, 2), ("interleaved", 8, 32, 2), ("zb-h1", 8, 24, 1), ("zb-v", 8, 24, 2),
    ("zb-turns", 8, 16, 2), ("1f1b", 4, 1, 1),
]  # fmt: skip
Batches = list[tuple[Transfer, ...]]


def seconds(schedule: Schedule, *, merged: bool) -> float:
    """How long a schedule lasts where messages take no time, begin when both of their ranks have come to them, and a
    rank's are carried out one batch after another; merged: those that follow one another are one batch."""
    programs, last, split = with_transfers(schedule), last_stage(schedule), is_split(schedule)
    batches = [list(in_batches(row, merged=merged)) for row in programs]
    of = [{t: batch for batch in row for t in batch} for row in batches]
    at, clock, ended = [0] * len(programs), [0.0] * len(programs), [0.0] * len(programs)
    come: dict[tuple[int, Transfer], float] = {}  # when a rank asked for a transfer
    begun: dict[tuple[int, Transfer], float] = {}  # when its turn came
    done: dict[tuple[int, tuple[Transfer, ...]], float] = {}
    while any(place < len(row) for place, row in zip(at, programs)):
        before = [*at, *map(len, batches)]
        for rank, row in enumerate(programs):
            while at[rank] < len(row):
                event = row[at[rank]]
                if isinstance(event, Transfer):
                    come[rank, event] = clock[rank]
                else:
                    need = [
                        (rank, of[rank][t])
                        for t in of[rank]
                        if t.target == rank
                        and t.produced_by in inputs(event, last, split=event.op is Op.INPUT_GRADIENT and split)
                    ]
                    if any(key not in done for key in need):
                        break
                    clock[rank] = max([clock[rank], *(done[key] for key in need)]) + SECONDS[event.op]
                at[rank] += 1
            while batches[rank] and all((rank, t) in come for t in batches[rank][0]):
                batch = batches[rank][0]
                begun |= {(rank, t): max(ended[rank], come[rank, batch[-1]]) for t in batch}
                ends = [(end, t) for t in batch for end in (t.source, t.target)]
                if any(end not in begun for end in ends):
                    break
                ended[rank] = done[rank, batch] = max(begun[end] for end in ends)
                batches[rank].pop(0)
        assert before != [*at, *map(len, batches)], "no rank can go on"
    return max(clock)


def in_batches(row: tuple[Action | Transfer, ...], *, merged: bool) -> Iterator[tuple[Transfer, ...]]:
    batch: list[Transfer] = []
    for event in [*row, None]:
        if isinstance(event, Transfer) and (merged or not batch):
            batch.append(event)
            continue
        if batch:
            yield tuple(batch)
        batch = [event] if isinstance(event, Transfer) else []


def alone(schedule: Schedule) -> float:
    """How long it lasts where only its actions wait for each other."""
    last, split = last_stage(schedule), is_split(schedule)
    at, clock, done = [0] * len(schedule), [0.0] * len(schedule), {}
    while any(place < len(row) for place, row in zip(at, schedule)):
        for rank, row in enumerate(schedule):
            while at[rank] < len(row):
                action = row[at[rank]]
                need = inputs(action, last, split=action.op is Op.INPUT_GRADIENT and split)
                if any(a not in done for a in need):
                    break
                clock[rank] = max([clock[rank], *(done[a] for a in need)]) + SECONDS[action.op]
                done[action] = clock[rank]
                at[rank] += 1
    return max(clock)


@pytest.mark.parametrize(("name", "pipeline", "micro_batches", "chunks"), CASES)
def test_messages_one_after_another_hold_up_nothing(name, pipeline, micro_batches, chunks):
    schedule = make_schedule(name, pipeline=pipeline, micro_batches=micro_batches, chunks=chunks)
    assert seconds(schedule, merged=False) <= 1.04 * alone(schedule)


def test_messages_merged_into_batches_would():
    schedule = make_schedule("1f1b", pipeline=4, micro_batches=8)
    assert (alone(schedule), seconds(schedule, merged=False), seconds(schedule, merged=True)) == (33, 33, 46)
