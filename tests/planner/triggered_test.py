"""The event simulation of products that trigger their collectives: limits, bytes, and the figures of T3's authors."""

from itertools import pairwise

import numpy as np
import pytest

from trivium.cost.hardware import Machine, machine_named
from trivium.cost.overlap import TILE, moved_when_triggered
from trivium.planner.triggered import Product, Tracking, run_ring, simulate

PAPER = machine_named("t3-paper")
FEED_FORWARD = Product("feed-forward output", 1024, 2048, 512, 4)
ENDLESS = 1e24  # bytes or operations per second


def machine(link: float = 75e9, memory: float = 1e12, flops: float = 114.7e12, latency: float = 0.5e-6) -> Machine:
    peak = PAPER.peak.model_copy(update={"fp16": flops})
    node_link = PAPER.node_link.model_copy(update={"bandwidth": link, "latency_seconds": latency})
    return PAPER.model_copy(update={"peak": peak, "node_link": node_link, "memory_bandwidth": memory})


@pytest.mark.parametrize("arbitration", ("first come", "product first"))
def test_without_messages_cost_only_the_product_remains_and_without_the_product_only_the_ring(arbitration):
    waves = -(-FEED_FORWARD.tiles // PAPER.multiprocessors)
    product = waves * 2 * TILE * TILE * FEED_FORWARD.inner * PAPER.multiprocessors / 114.7e12
    found = run_ring(FEED_FORWARD, machine(link=ENDLESS, memory=ENDLESS, latency=0.0), arbitration)
    assert found.seconds == pytest.approx(product)
    hop = FEED_FORWARD.result_bytes / FEED_FORWARD.degree / 75e9 + 0.5e-6
    found = run_ring(FEED_FORWARD, machine(memory=ENDLESS, flops=ENDLESS), arbitration)
    assert found.seconds == pytest.approx((FEED_FORWARD.degree - 1) * hop, rel=1e-3)


@pytest.mark.parametrize("degree", (2, 3, 8))
@pytest.mark.parametrize("arbitration", ("first come", "product first"))
def test_bytes_are_those_of_the_closed_form_and_nothing_is_faster_than_what_it_moves(degree, arbitration):
    product = FEED_FORWARD._replace(degree=degree)
    found = run_ring(product, PAPER, arbitration)
    moved = moved_when_triggered(found.product_reads, product.result_bytes, degree)
    assert found.product_reads + found.stores == pytest.approx(moved.product)
    assert found.message_reads + found.arrivals == pytest.approx(moved.reduction)
    ring = (degree - 1) * product.result_bytes / degree / 75e9
    flops = 2.0 * product.rows * product.columns * product.inner
    assert found.seconds >= max(ring, flops / 114.7e12, (moved.product + moved.reduction) / 1e12)


@pytest.mark.parametrize("arbitration", ("first come", "product first"))
@pytest.mark.parametrize("faster", ("link", "memory", "flops"))
def test_faster_hardware_is_never_slower(faster, arbitration):
    base = {"link": 20e9, "memory": 0.2e12, "flops": 20e12}
    found = [
        run_ring(FEED_FORWARD, machine(**{**base, faster: base[faster] * by}), arbitration).seconds
        for by in (1, 2, 8, 64)
    ]
    assert all(later <= sooner * (1 + 1e-9) for sooner, later in pairwise(found))


def test_a_small_tracker_finishes_and_costs_time():
    product = Product("", 4096, 2048, 256, 8)
    seconds = [
        run_ring(product, machine(link=10e9), "first come", Tracking(tracked_tiles=tiles)).seconds
        for tiles in (1, 64, 4096)
    ]
    assert seconds == sorted(seconds, reverse=True)


def test_the_authors_figures_for_products_of_two_of_their_models_are_met_within_five_points():
    """Geometric mean and largest speed-up over Mega-GPT-2 and T-NLG (tensor 8 and 16): ideal 35 and 50 %, first come 20
    and 39 %, product first 30 and 47 %; and 22 % less data."""
    models = ((3072, 16 * 1024), (4256, 8 * 1024))
    found = [
        simulate(Product("", tokens, hidden, inner * hidden // degree, degree), PAPER)
        for hidden, tokens in models
        for degree in (8, 16)
        for inner in (1, 4, 4, 3)
    ]
    published = {"ideal": (0.35, 0.50), "first_come": (0.20, 0.39), "product_first": (0.30, 0.47)}
    for name, (mean, most) in published.items():
        speeds = [s.speed_up(getattr(s, name)) for s in found]
        assert float(np.exp(np.mean(np.log1p(speeds))) - 1) == pytest.approx(mean, abs=0.05)
        assert max(speeds) == pytest.approx(most, abs=0.05)
    assert np.mean([s.less_moved for s in found]) == pytest.approx(0.22, abs=0.05)
    assert all(s.ideal <= s.product_first <= s.first_come < s.sequential for s in found)
    lost = [s.speed_up(s.ideal) - s.speed_up(s.first_come) for s in found]
    assert all(lost[at] < min(lost[at + 1 : at + 4]) for at in range(0, len(lost), 4))  # least for attention's output


@pytest.mark.parametrize("product", (FEED_FORWARD, Product("", 2048, 12288, 1152, 32), Product("", 1000, 520, 777, 3)))
def test_the_order_of_requests_helps_and_streams_that_do_not_disturb_each_other_cost_less(product):
    sublayer, calm = simulate(product, PAPER), simulate(product, PAPER, Tracking(interleaved=1.0))
    assert sublayer.ideal <= sublayer.product_first <= sublayer.first_come * (1 + 1e-9)
    assert calm.first_come <= sublayer.first_come
