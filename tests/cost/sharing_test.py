import numpy as np
import pytest

from trivium.cost.case import case_of
from trivium.cost.hardware import this_machine
from trivium.cost.prices import Piece
from trivium.cost.sharing import on_shared_cores
from trivium.plan.plan import Plan

CORES = 2
MACHINE = this_machine(CORES, 16 << 30)


def shared(*, tensor=1, data=1, compute=1.0, messages=0.0, alone=None, transfers=0.0, share=0.5):
    """Price a plan whose ranks compute and communicate for these seconds, and take `alone` seconds on separate cores.

    transfers: the seconds of `alone` that are spent in transfers.
    """
    model = {"layers": 4, "hidden": 64, "heads": 4, "vocabulary": 256, "sequence": 32}
    layout = {"tensor": tensor, "data": data}
    plan = Plan.model_validate({"model": model, "layout": layout, "batch": {"sequences": 8, "micro": 1}})
    path = compute + messages if alone is None else alone
    return on_shared_cores(MACHINE, case_of(plan), Piece(compute, messages), path, transfers, share)


def queue(groups, held, waiting):
    """Return the mean time around a closed queue of `groups`, each of which holds the server for `held` and then waits,
    by mean value analysis (Reiser and Lavenberg, 1980)."""
    around, queued = 0.0, 0.0
    for n in range(1, groups + 1):
        answer = held * (1 + queued)
        around = answer + waiting
        queued = n * answer / around
    return around


def test_ranks_with_a_core_each_take_as_long_as_alone():
    found = shared(tensor=2, messages=0.7, alone=2.0, transfers=0.2)
    assert found.seconds == pytest.approx(2.0)
    assert (found.work.total, found.bubble, found.transfers) == pytest.approx((1.7, 0.1, 0.2))


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_ranks_that_never_wait_share_the_cores(ranks):
    assert shared(data=ranks).seconds == pytest.approx(ranks / CORES)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("messages", [0.1, 1.0, 5.0])
def test_one_group_and_two_are_their_closed_queue(groups, share, messages):
    found = shared(tensor=CORES, data=groups, messages=messages, share=share)
    expected = queue(groups, 1 + share * messages, (1 - share) * messages)
    assert found.seconds == pytest.approx(expected)


@pytest.mark.parametrize("messages", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("groups", [3, 4, 16])
def test_more_groups_lie_near_their_closed_queue(groups, messages):
    found = shared(tensor=CORES, data=groups, messages=messages)
    expected = queue(groups, 1 + messages / 2, messages / 2)
    assert 0.8 * expected <= found.seconds <= expected * (1 + 1e-9)


def test_waiting_costs_no_core_so_groups_fill_it():
    alone = shared(tensor=CORES, messages=1.0).seconds
    twice = shared(tensor=CORES, data=2, messages=1.0).seconds
    assert alone < twice < 2 * alone
    assert shared(tensor=CORES, data=2, messages=1.0, share=1.0).seconds == pytest.approx(2 * alone)


def test_the_parts_add_up_and_none_is_negative():
    random = np.random.default_rng(3)
    for _ in range(50):
        tensor, data = (int(2 ** random.integers(0, 3)) for _ in range(2))
        compute, messages, more = random.random(3)
        times = {"compute": compute, "messages": messages, "alone": compute + messages + more}
        about = {"tensor": tensor, "data": data, "share": float(random.random()), **times}
        found, moving = shared(**about), shared(**about, transfers=more * float(random.random()))
        for each in (found, moving):
            parts = (*each.work, each.bubble, each.transfers)
            assert all(part >= -1e-12 for part in parts)
            assert each.work.compute == pytest.approx(compute * max(1, tensor * data / CORES))
        least = tensor * data / CORES * compute
        assert found.seconds >= max(least, compute + messages + more) - 1e-9
        # A transfer is part of that time, not an addition to it.
        assert moving.seconds == pytest.approx(found.seconds)
        assert moving.transfers + moving.bubble == pytest.approx(found.bubble)
