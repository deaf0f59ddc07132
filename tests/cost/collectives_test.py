import pytest

from trivium.cost.collectives import all_gather_seconds, all_reduce_seconds, send_seconds
from trivium.cost.hardware import Link

LINK = Link(bandwidth=100.0, efficiency=0.5, latency_seconds=0.25)


def test_a_group_of_one_costs_nothing():
    assert all_reduce_seconds(1e9, 1, LINK) == all_gather_seconds(1e9, 1, LINK) == 0


def test_a_ring_moves_all_but_its_own_share_and_hops_once_less_than_its_ranks():
    assert all_gather_seconds(400.0, 4, LINK) == pytest.approx(300 / 50 + 3 * 0.25)
    assert all_reduce_seconds(400.0, 4, LINK) == 2 * all_gather_seconds(400.0, 4, LINK)
    assert send_seconds(50.0, LINK) == pytest.approx(1.25)
