"""The links between hosts are measured in pairs that do not share a host, and the slow one is named."""

import socket
from dataclasses import replace
from itertools import combinations

import pytest

from ranks import ranks
from trivium.comms import links
from trivium.comms.launch import Place
from trivium.comms.links import Link, host_names, measured_links, rounds, slow_of


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 7, 16])
def test_every_pair_meets_once_and_no_host_is_in_two_pairs_of_a_round(hosts: int) -> None:
    tournament = rounds(hosts)
    assert sorted(pair for pairs in tournament for pair in pairs) == list(combinations(range(hosts), 2))
    assert all(len({host for pair in pairs for host in pair}) == 2 * len(pairs) for pairs in tournament)
    assert len(tournament) <= hosts - 1 + hosts % 2


def test_the_slow_link_is_named_against_the_median_and_even_links_are_not() -> None:
    even = [Link(a, b, 1e9 + a * 1e7, 1e-5) for a, b in combinations(range(4), 2)]
    assert slow_of(even) == [] and slow_of(even[:2]) == []
    narrow, late = even[2]._replace(bytes_per_second=5e8), even[4]._replace(latency_seconds=4e-5)
    assert slow_of([*even[:2], narrow, even[3], late, even[5]]) == [narrow, late]


@ranks(3)
def test_all_ranks_get_a_bandwidth_and_a_latency_of_every_pair(place: Place) -> None:
    links.MESSAGE_BYTES = 1 << 12
    found = measured_links(replace(place, local_ranks=1))
    assert [link[:2] for link in found] == [(0, 1), (0, 2), (1, 2)]
    assert host_names(replace(place, local_ranks=1)) == [socket.gethostname()] * 3
    assert all(link.bytes_per_second > 0 and link.latency_seconds > 0 for link in found)
