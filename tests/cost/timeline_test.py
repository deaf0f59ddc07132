import pytest

from trivium.cost.timeline import simulate
from trivium.plan.schedule import Op, forward, make_schedule

MICRO_BATCHES = (1, 2, 5, 8, 32)


def seconds(action):
    """A backward takes twice a forward."""
    return 1.0 if action.op is Op.FORWARD else 2.0


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("pipeline", range(1, 9))
def test_the_bubble_of_gpipe_and_1f1b_is_p_minus_1_over_m(name, pipeline):
    for m in MICRO_BATCHES:
        timeline = simulate(make_schedule(name, pipeline=pipeline, micro_batches=m), seconds)
        assert timeline.bubble_fraction == pytest.approx((pipeline - 1) / m, abs=1e-12)


@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("pipeline", range(1, 9))
def test_interleaving_divides_the_bubble_by_the_chunks(pipeline, chunks):
    for m in {pipeline, 2 * pipeline, 32 // pipeline * pipeline}:
        schedule = make_schedule("interleaved", pipeline=pipeline, micro_batches=m, chunks=chunks)
        bubble = simulate(schedule, lambda a: seconds(a) / chunks).bubble_fraction
        assert bubble == pytest.approx((pipeline - 1) / (m * chunks), abs=1e-12)


def test_a_rank_does_one_thing_at_a_time_and_nothing_starts_before_its_input():
    schedule = make_schedule("interleaved", pipeline=4, micro_batches=8, chunks=2)
    timeline = simulate(schedule, seconds, transfer=0.25)
    for row in schedule:
        ends = 0.0
        for action in row:
            start, end = timeline.spans[action]
            assert start >= ends and end - start == seconds(action)
            ends = end
    for m in range(8):
        for stage in range(1, 8):
            arrives = timeline.spans[forward(m, stage - 1)][1] + 0.25
            assert timeline.spans[forward(m, stage)][0] >= arrives


def test_transfers_delay_only_what_crosses_ranks():
    alone = make_schedule("1f1b", pipeline=1, micro_batches=4)
    assert simulate(alone, seconds, transfer=9.0).duration == 12.0
    two = make_schedule("1f1b", pipeline=2, micro_batches=1)
    assert simulate(two, seconds, transfer=9.0).duration == 6.0 + 2 * 9.0


def test_rows_are_the_executed_trace_in_the_form_it_is_stored():
    rows = simulate(make_schedule("1f1b", pipeline=2, micro_batches=1), seconds).rows()
    assert rows[0] == {"pipeline_rank": 0, "action": "F0.0", "start": 0.0, "end": 1.0}
    assert [r["action"] for r in rows] == ["F0.0", "B0.0", "F0.1", "B0.1"]
