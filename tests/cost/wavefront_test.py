import numpy as np
import pytest

from trivium.cost.orders import order_of
from trivium.cost.timeline import simulate
from trivium.cost.wavefront import Run, end_times, finish_seconds
from trivium.plan.schedule import SPLIT_SCHEDULES, Op, make_schedule

PART = {Op.FORWARD: 0, Op.BACKWARD: 1, Op.INPUT_GRADIENT: 1, Op.WEIGHT_GRADIENT: 2}
KINDS = [
    ("gpipe", 1),
    ("1f1b", 1),
    ("interleaved", 2),
    ("interleaved", 3),
    ("zb-h1", 1),
    ("zb-v", 2),
    ("1f1b-split", 1),
]


def run(name, pipeline, micro_batches, chunks, *, noise, transfer, seed=0):
    """Forward 1, backward 2 (or 1.3 and 0.7), each stage slower by up to `noise`."""
    parts = [1.0, 1.3, 0.7] if name in SPLIT_SCHEDULES else [1.0, 2.0]
    uneven = 1 + noise * np.random.default_rng(seed).random((len(parts), pipeline * chunks))
    return Run(name, pipeline, micro_batches, chunks, np.array(parts)[:, None] * uneven, transfer)


def plainly(each):
    table = make_schedule(each.name, pipeline=each.pipeline, micro_batches=each.micro_batches, chunks=each.chunks)
    return simulate(table, lambda a: each.seconds[PART[a.op], a.stage], each.transfer)


@pytest.mark.parametrize(("name", "chunks"), KINDS)
def test_the_step_ends_when_the_plain_simulation_says(name, chunks):
    """Short steps and long ones, of equal and of uneven stages, whether or not a steady phase settles."""
    runs = [
        run(name, p, m, chunks, noise=noise, transfer=transfer, seed=p)
        for p in (1, 2, 3, 5)
        for m in (p, 2 * p, 7 * p, 60)
        for noise in (0.0, 0.03, 0.6)
        for transfer in (0.0, 0.4)
        if p > 1 or chunks == 1
    ]
    expected = [plainly(each).duration for each in runs]
    assert finish_seconds(runs) == pytest.approx(expected, rel=1e-9)


def test_every_action_ends_when_the_plain_simulation_says():
    runs = [run(name, 4, 8, chunks, noise=0.5, transfer=0.2) for name, chunks in KINDS]
    orders = [order_of(r.name, r.pipeline, r.micro_batches, r.chunks) for r in runs]
    for each, times in zip(runs, end_times(orders, runs), strict=True):
        timeline = plainly(each)
        ends = {(timeline.rank_of[a], round(end, 9)) for a, (_, end) in timeline.spans.items()}
        assert {(rank, round(end, 9)) for rank, row in enumerate(times) for end in row} == ends


@pytest.mark.parametrize(("name", "chunks"), [k for k in KINDS if k[0] != "gpipe"])
@pytest.mark.parametrize("pipeline", [2, 3, 8])
def test_what_follows_the_cut_needs_nothing_older_than_one_period(name, chunks, pipeline):
    """The condition under which a step may be prolonged without being simulated."""
    period = pipeline if name == "interleaved" else 1
    short, longer = (order_of(name, pipeline, m, chunks) for m in (4 * pipeline, 4 * pipeline + period))
    length = short.kinds.shape[1]
    width = longer.kinds.shape[1] - length
    differs = longer.kinds[:, :length] != short.kinds
    cut = np.where(differs.any(axis=1), differs.argmax(axis=1), length)
    place = {
        (kind, number): (rank, position)
        for rank in range(pipeline)
        for position, (kind, number) in enumerate(
            zip(longer.kinds[rank].tolist(), longer.numbers[rank].tolist(), strict=True)
        )
    }
    looked = 0
    for (kind, number), (rank, position) in place.items():
        op, stage = divmod(kind, longer.stages)
        source = {0: stage - 1, 1: stage + 1}.get(op, -1)
        if position >= cut[rank] and 0 <= source < longer.stages:
            there, made = place[op * longer.stages + source, number]
            assert there == rank or made >= cut[there] - width
            looked += 1
    assert looked


def test_the_time_of_a_run_does_not_depend_on_the_runs_beside_it():
    runs = [run(name, 3, 30, chunks, noise=0.1, transfer=0.1) for name, chunks in KINDS]
    together = finish_seconds(runs)
    assert [finish_seconds([each])[0] for each in runs] == list(together)


def test_nothing_to_time_takes_no_time():
    assert finish_seconds([]).tolist() == []
