import numpy as np
import pytest

from trivium.cost.orders import Order, order_of
from trivium.errors import ConfigError
from trivium.plan.schedule import Schedule, is_split, last_stage, make_schedule, ops, stages_of_ranks

CHUNKS = {"gpipe": (1,), "1f1b": (1,), "interleaved": (1, 2, 3), "zb-h1": (1,), "zb-v": (2,), "1f1b-split": (1,)}


def order_of_table(schedule: Schedule) -> Order:
    """Any table whose ranks take the micro-batches of each kind in ascending order."""
    each = ops(split=is_split(schedule))
    stages, micro_batches = last_stage(schedule) + 1, 1 + max(a.micro_batch for row in schedule for a in row)
    rank_of = np.empty(stages, np.int64)
    for rank, held in enumerate(stages_of_ranks(schedule)):
        rank_of[list(held)] = rank
    kinds = np.array([[each.index(a.op) * stages + a.stage for a in row] for row in schedule])
    numbers = np.array([[a.micro_batch for a in row] for row in schedule])
    return Order(kinds, numbers, rank_of, micro_batches, each)


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("pipeline", [1, 2, 3, 5, 7])
def test_an_order_is_the_table_of_the_schedule(name, pipeline):
    compared = 0
    for micro_batches in (1, 2, 3, 5, 6, 7, 10, 14, 21):
        for chunks in CHUNKS[name]:
            illegal = (name == "interleaved" and micro_batches % pipeline) or (name == "zb-v" and pipeline == 1)
            if illegal:
                continue
            table = make_schedule(name, pipeline=pipeline, micro_batches=micro_batches, chunks=chunks)
            fast, plain = order_of(name, pipeline, micro_batches, chunks), order_of_table(table)
            assert np.array_equal(fast.kinds, plain.kinds) and np.array_equal(fast.numbers, plain.numbers)
            assert np.array_equal(fast.rank_of, plain.rank_of)
            assert (fast.micro_batches, fast.ops) == (plain.micro_batches, plain.ops)
            compared += 1
    assert compared or (name, pipeline) == ("zb-v", 1)


def test_an_interleaved_order_refuses_what_the_schedule_refuses():
    with pytest.raises(ConfigError, match=r"\(7\) in multiples of pipeline \(3\)"):
        order_of("interleaved", 3, 7, 2)


def test_a_given_schedule_has_no_order_by_its_name():
    with pytest.raises(ConfigError, match="given"):
        order_of("given", 2, 4)
