import numpy as np
import pytest

from trivium.cost.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    exchange_seconds,
    link_of_group,
    link_to_neighbour,
    send_seconds,
)
from trivium.cost.hardware import Link, Translation, machine_named, this_machine

LINK = Link(bandwidth=100.0, efficiency=0.5, latency_seconds=0.25, start_seconds=0.5)
SELENE = machine_named("selene")


def test_a_group_of_one_costs_nothing():
    assert all_reduce_seconds(1e9, 1, LINK) == all_gather_seconds(1e9, 1, LINK) == 0


def test_a_ring_moves_all_but_its_own_share_and_hops_once_less_than_its_ranks():
    assert all_gather_seconds(400.0, 4, LINK) == pytest.approx(300 / 50 + 3 * 0.25 + 0.5 / 2)
    assert all_reduce_seconds(400.0, 4, LINK) == 2 * all_gather_seconds(400.0, 4, LINK)
    assert send_seconds(50.0, LINK) == pytest.approx(1 + 0.25 + 0.5 / 2)


def test_bytes_beyond_64_bits_are_moved_too():
    for tensor_bytes in (2**62, 2**70):
        assert all_gather_seconds(tensor_bytes, 1_000_000, LINK) == pytest.approx(tensor_bytes / 50, rel=1e-5)


def test_the_latencies_of_small_all_reduces_are_those_measured_on_eight_a100():
    """vTrain's NCCL table has 35, 45 and 80 us at 2, 4 and 8 ranks."""
    found = [float(all_reduce_seconds(0.0, n, SELENE.node_link)) * 1e6 for n in (2, 4, 8)]
    assert found == pytest.approx([35, 45, 80], rel=0.12)


def test_a_group_inside_a_node_has_the_nodes_links_and_one_across_nodes_the_cards_of_all_its_ranks_there():
    degree, stride = np.array([8, 16, 16, 16, 16]), np.array([1, 8, 4, 2, 1])
    found = link_of_group(SELENE, degree, stride, fabric=0.8).bandwidth
    card = 0.8 * SELENE.fabric_link.effective_bandwidth
    assert found == pytest.approx([SELENE.node_link.effective_bandwidth, card, 2 * card, 4 * card, 8 * card])
    fast = SELENE.model_copy(update={"fabric_link": SELENE.node_link})
    assert link_of_group(fast, 16, 1, fabric=1.0).bandwidth == SELENE.node_link.effective_bandwidth, (
        "what the cards could take must come over the node's links"
    )


def test_neighbours_send_over_the_fabric_once_any_hop_leaves_the_node():
    found = link_to_neighbour(SELENE, np.array([2, 4]), np.array([4, 4]), fabric=0.8).bandwidth
    assert found == pytest.approx([SELENE.node_link.effective_bandwidth, 0.8 * SELENE.fabric_link.effective_bandwidth])


def test_ranks_that_share_a_machine_never_leave_it():
    found = link_of_group(this_machine(2, 1 << 30), np.array([64]), np.array([4]), fabric=0.1).bandwidth
    assert found == pytest.approx([this_machine(2, 1 << 30).node_link.effective_bandwidth])


@pytest.mark.parametrize(
    ("degree", "stride", "link", "hops"),
    [(8, 1, "node_link", 7), (2, 8, "fabric_link", 1), (16, 1, "fabric_link", 4), (64, 8, "fabric_link", 6)],
)
def test_what_crosses_nodes_starts_and_hops_as_the_fabric_does_along_a_tree(degree, stride, link, hops):
    """Inside a node a ring hops to every other rank; between nodes a tree takes the logarithm of their number."""
    over = getattr(SELENE, link)
    link = link_of_group(SELENE, degree, stride, fabric=1.0)
    assert link.start_seconds == over.start_seconds
    assert link.hop_seconds * (degree - 1) == pytest.approx(over.latency_seconds * hops)
    found = exchange_seconds(SELENE, 0.0, degree, stride, 1.0)
    assert found == pytest.approx(over.start_seconds / 2 + over.latency_seconds * hops)


def test_in_an_exchange_each_rank_sends_what_leaves_the_node_over_its_own_card():
    """With 16 ranks, 8 of them in a node, half of what each rank sends leaves its node."""
    free = {"latency_seconds": 0.0, "start_seconds": 0.0}
    machine = SELENE.model_copy(
        update={name: getattr(SELENE, name).model_copy(update=free) for name in ("node_link", "fabric_link")}
    )
    card, inside = 0.8 * SELENE.fabric_link.effective_bandwidth, SELENE.node_link.effective_bandwidth
    sent = [float(exchange_seconds(machine, 16e9, n, 1, 0.8)) for n in (1, 8, 16)]
    assert sent == pytest.approx([0, 16e9 * 7 / 8 / inside, 16e9 / 2 / card])


PAGES = Translation(page_bytes=1 << 21, walk_seconds=1e-6, parallel_walks=4, cold_share=0.5)


def test_a_message_waits_one_walk_and_the_walks_of_its_cold_pages():
    """By hand: 5 MB are 3 pages of 2 MiB; half of them, 4 walks at once, add 3 x 0.5 x 1 / 4 = 0.375 us to 1 us."""
    quiet = Link(bandwidth=450e9, efficiency=1.0, latency_seconds=1e-6)
    link = quiet.model_copy(update={"translation": PAGES})
    moved, more = 5_000_000, pytest.approx(1.375e-6)
    for seconds in (all_gather_seconds, all_reduce_seconds):
        assert seconds(moved, 8, link) - seconds(moved, 8, quiet) == more
        assert seconds(moved, 1, link) == 0
    assert send_seconds(moved, link) - send_seconds(moved, quiet) == more
    pod = SELENE.model_copy(update={"node_link": link})
    plain = SELENE.model_copy(update={"node_link": quiet})
    exchanges = [exchange_seconds(machine, moved, 8, 1, 1.0) for machine in (pod, plain)]
    assert exchanges[0] - exchanges[1] == more
    across = [float(exchange_seconds(machine, moved, 16, 1, 1.0)) for machine in (pod, plain)]
    assert across[0] == across[1], "the fabric of this machine translates nothing"
    assert pod.without_translation() == plain


def test_translation_is_0_3_of_a_small_all_to_all_and_little_of_a_large_one():
    """arXiv 2604.02473 simulates up to 1.4 times the seconds for 1 MB, about 30 % of a request. Pages and walks are
    assumptions that give this figure."""
    link = Link(bandwidth=450e9, efficiency=1.0, latency_seconds=100e-9, translation=PAGES)
    pod = SELENE.model_copy(update={"node_link": link})
    sizes = 2.0 ** np.arange(16, 31)
    ratio = exchange_seconds(pod, sizes, 8, 1, 1.0) / exchange_seconds(pod.without_translation(), sizes, 8, 1, 1.0)
    assert ratio[4] == pytest.approx(1.4, abs=0.03)
    assert 1 - 1 / ratio[4] == pytest.approx(0.3, abs=0.02)
    assert (np.diff(ratio) < 0).all() and 1.0 < ratio[-1] < 1.04
