import dataclasses

import pytest

from plans import small
from trivium.cost.hardware import machine_named
from trivium.cost.memory import memory_of_rank
from trivium.cost.timeline import simulate
from trivium.plan.layout import Coordinate
from trivium.plan.transfers import Transfer, with_transfers
from trivium.planner.breakdown import (
    break_down,
    handed_on,
    held_by_rank,
    held_over_time,
    lanes,
    rank_times,
    traffic_by_axis,
)

MACHINE = machine_named("selene")
PLANS = [
    small(pipeline=2, data=2),
    small(pipeline=2, data=2, schedule="1f1b-split"),
    small(pipeline=2, chunks=2, data=2),
    small(pipeline=4, schedule="zb-h1"),
    small(pipeline=2, chunks=2, schedule="zb-v"),
    small(pipeline=2, chunks=2, schedule="zb-turns"),
    small(tensor=2, pipeline=2, recompute={"mode": "layer"}),
    small(pipeline=2, schedule="gpipe"),
    small(data=4, zero=2),
    small(data=8),
    small(model={"layers": 8, "hidden": 512}, batch={"sequences": 1, "micro": 1}),  # gradients open one by one
]


def seconds(action):
    return {"F": 1.0, "B": 2.0, "I": 1.25, "W": 0.75}[action.op] * (1 + 0.1 * action.stage)


def timeline(plan):
    return simulate(plan.schedule_table(), seconds, 0.25)


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: f"{p.schedule}-{p.layout.world_size}")
def test_the_spans_drawn_are_the_schedules_actions_in_its_order(plan):
    drawn = [[(op, m, s) for op, m, s, _, _ in row] for row in lanes(timeline(plan))]
    assert drawn == [[(a.op.value, a.micro_batch, a.stage) for a in row] for row in plan.schedule_table()]


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: f"{p.schedule}-{p.layout.world_size}")
def test_memory_over_time_peaks_at_the_predicted_memory_and_ends_where_it_began(plan):
    at = timeline(plan)
    for rank in range(plan.layout.pipeline):
        holds = held_by_rank(plan, rank)
        held = held_over_time(at, rank, holds)
        predicted = memory_of_rank(plan, Coordinate(rank, 0, 0))
        assert max(each for _, each in held) == dataclasses.replace(predicted, reduction=0).total
        assert held[-1][1] == pytest.approx(holds.always + holds.gradients)
        assert all(each >= holds.always for _, each in held)
        assert [t for t, _ in held] == sorted({t for t, _ in held})


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: f"{p.schedule}-{p.layout.world_size}")
def test_work_and_idle_time_of_every_rank_are_the_whole_step(plan):
    at = timeline(plan)
    for time, busy in zip(rank_times(at), at.busy, strict=True):
        assert time.busy == pytest.approx(busy)
        assert time.busy + time.idle == pytest.approx(at.duration) and time.idle >= -1e-9


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: f"{p.schedule}-{p.layout.world_size}")
def test_the_tensors_drawn_between_ranks_are_those_the_runtime_sends(plan):
    programs = with_transfers(plan.schedule_table())
    sent = sorted((e.source, e.target) for n, row in enumerate(programs) for e in row if _sends(e, n))
    drawn = handed_on(timeline(plan))
    assert sorted((a, b) for a, b, _, _ in drawn) == sent
    assert all(begin <= end for _, _, begin, end in drawn)


def _sends(event, rank):
    return isinstance(event, Transfer) and event.source == rank


def test_a_breakdown_is_the_estimate_with_its_parts_by_rank():
    plan = small(tensor=2, pipeline=2, data=2)
    found = break_down(plan, MACHINE)
    assert len(found.times) == len(found.memory) == len(found.traffic) == 2
    assert max(held.total for held in found.memory) == found.price.memory.total
    tree = found.tree()
    assert tree["estimate"]["seconds"] == found.price.seconds
    assert [r["pipeline"] for r in tree["ranks"]] == [0, 1]
    assert set(traffic_by_axis(found.traffic[0])) >= {"tensor", "pipeline", "replicas"}
