import numpy as np
import pytest

from trivium.cost.in_flight import interleaved_sums, peak_counts, peak_counts_of, put_off_counts, put_off_counts_of
from trivium.plan.schedule import Op, ScheduleName, make_schedule, parse_schedule

CHUNKS: dict[ScheduleName, tuple[int, ...]] = {
    "gpipe": (1,),
    "1f1b": (1,),
    "1f1b-split": (1,),
    "zb-h1": (1,),
    "interleaved": (2, 3, 4),
    "zb-v": (2,),
}


@pytest.mark.parametrize("pipeline", range(1, 8))
@pytest.mark.parametrize("name", CHUNKS)
def test_counts_by_arithmetic_are_those_read_off_the_table(name: ScheduleName, pipeline: int) -> None:
    for chunks in CHUNKS[name]:
        for micro_batches in range(1, 3 * pipeline + 4):
            if (name == "interleaved" and micro_batches % pipeline) or (name == "zb-v" and pipeline == 1):
                continue
            shape = {"pipeline": pipeline, "micro_batches": micro_batches, "chunks": chunks}
            table = make_schedule(name, **shape)
            for until in (Op.WEIGHT_GRADIENT, Op.INPUT_GRADIENT):
                counts = peak_counts(name, **shape, until=until)
                assert counts == tuple(peak_counts_of(row, until=until) for row in table), (until, shape)
            assert put_off_counts(name, **shape) == tuple(put_off_counts_of(row) for row in table), shape


@pytest.mark.parametrize("pipeline", range(1, 6))
@pytest.mark.parametrize("chunks", (2, 3, 5))
def test_sums_of_the_largest_sets_are_those_of_the_sets(pipeline: int, chunks: int) -> None:
    weights = np.random.default_rng(7).integers(0, 9, (chunks, 3))
    for micro_batches in range(pipeline, 4 * pipeline + 1, pipeline):
        for rank, sets in enumerate(peak_counts("interleaved", pipeline, micro_batches, chunks)):
            sums = interleaved_sums(pipeline, micro_batches, chunks, rank, weights)
            assert {*map(tuple, sums.tolist())} == {*map(tuple, (np.array(sets) @ weights).tolist())}


def test_a_set_that_another_contains_is_left_out() -> None:
    (row,) = parse_schedule(["F0.0 F1.0 B0.0 B1.0 F2.0 B2.0"])
    assert peak_counts_of(row) == ((2,),)


def test_an_activation_is_held_until_its_weight_gradient_is_there() -> None:
    (row,) = parse_schedule(["F0.0 I0.0 F1.0 W0.0 I1.0 W1.0"])
    assert peak_counts_of(row) == ((2,),)
    assert peak_counts_of(row, until=Op.INPUT_GRADIENT) == ((1,),), "the host keeps it until the input gradient is"


def test_stages_of_one_rank_may_peak_at_different_times() -> None:
    (row,) = parse_schedule(["F0.0 F1.0 F0.1 B0.1 B0.0 F1.1 F2.1 B2.1 B1.1 B1.0"])
    assert peak_counts_of(row) == ((1, 2), (2, 1))
