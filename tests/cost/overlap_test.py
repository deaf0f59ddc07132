"""Products that are reduced part by part: closed forms against an event by event simulation, and their limits."""

from dataclasses import replace

import numpy as np
import pytest

from cost.plans import mt_nlg
from trivium.cost.case import case_of
from trivium.cost.constants import shipped_constants
from trivium.cost.estimate import estimate
from trivium.cost.hardware import machine_named, this_machine
from trivium.cost.overlap import (
    added_seconds,
    moved_by_kernels,
    moved_when_triggered,
    pipelined_seconds,
    ring_seconds,
    tiled_seconds,
)
from trivium.cost.prices import prices, sublayers, triggered_seconds
from trivium.cost.setting import setting
from trivium.cost.stack import OURS, stack_named
from trivium.cost.tensor_ring import ring_products, seconds_in_ring, spared_seconds

SELENE = machine_named("selene")
TIMES = ((1.0, 1.0), (3.0, 1.0), (1.0, 3.0), (1.0, 0.0))


def played(work: float, moving: float, parts: int) -> float:
    """Return the seconds of a product whose parts are reduced one by one, event by event."""
    worked = moved = 0.0
    for _ in range(parts):
        worked += work
        moved = max(moved, worked) + moving
    return moved


@pytest.mark.parametrize(("work", "moving"), TIMES)
@pytest.mark.parametrize("parts", (1, 2, 7, 100))
def test_the_closed_form_is_the_simulated_flow_shop(work, moving, parts):
    assert pipelined_seconds(work, moving, parts) == pytest.approx(played(work, moving, parts))


@pytest.mark.parametrize(("product", "reduction"), TIMES)
def test_one_tile_hides_nothing_and_infinitely_many_all_but_the_longer(product, reduction):
    assert tiled_seconds(product, reduction, 0.0, 1) == pytest.approx(product + reduction)
    assert tiled_seconds(product, reduction, 0.0, 10**9) == pytest.approx(max(product, reduction))


def test_more_tiles_are_never_slower_and_never_save_more_than_half():
    random = np.random.default_rng(0)
    for product, reduction in random.exponential(1.0, (50, 2)):
        seconds = [float(tiled_seconds(product, reduction, 0.0, n)) for n in (1, 2, 5, 20, 1000)]
        assert seconds == sorted(seconds, reverse=True)
        assert seconds[-1] >= (product + reduction) / 2


@pytest.mark.parametrize(("work", "moving"), TIMES)
def test_beside_work_traffic_adds_what_is_longer_and_what_is_not_hidden_of_the_shorter(work, moving):
    assert added_seconds(work, moving, 0.0) == pytest.approx(moving)
    assert added_seconds(work, moving, 1.0) == pytest.approx(max(moving - work, 0))
    half = added_seconds(work, moving, 0.5)
    assert half == pytest.approx((moving + max(moving - work, 0)) / 2)


def test_a_start_is_paid_before_any_byte_flows():
    assert tiled_seconds(5.0, 3.0, 1.0, 10**9) == pytest.approx(6.0)
    assert tiled_seconds(1.0, 0.2, 0.2, 4) == pytest.approx(1.2)


@pytest.mark.parametrize("degree", (2, 4, 8, 64))
def test_triggered_tiles_move_the_closed_forms_share_less(degree):
    """Without operands, product and reduction move 3d - 4 slices instead of 4d - 1: in the limit a quarter less."""
    kernels, triggered = (f(0.0, 1.0, degree) for f in (moved_by_kernels, moved_when_triggered))
    assert kernels.product + kernels.reduction == pytest.approx((4 * degree - 1) / degree)
    assert triggered.product + triggered.reduction == pytest.approx((3 * degree - 4) / degree)
    assert triggered.gather == kernels.gather
    far = [f(0.0, 1.0, 10**9) for f in (moved_by_kernels, moved_when_triggered)]
    assert 1 - (far[1].product + far[1].reduction) / (far[0].product + far[0].reduction) == pytest.approx(0.25)


def at(plan, **stack):
    changed = stack_named(OURS).model_copy(update=stack)
    return setting(case_of(plan), SELENE, changed, shipped_constants())


def test_every_sublayer_of_mt_nlg_is_faster_when_triggered_and_within_the_bound():
    here = at(mt_nlg(), tile_triggered=True)
    for sublayer in sublayers(here):
        seconds = float(triggered_seconds(here, sublayer))
        assert max(sublayer.product, sublayer.reduction) <= seconds < sublayer.alone


def test_products_of_attention_are_as_wide_as_its_heads_together():
    inner = {s.name: s.inner for s in sublayers(at(mt_nlg(model={"head_width": 320, "kv_heads": 16})))}
    assert inner["attention output"] == 128 * 320 / 8
    assert inner["gradient of attention's input"] == (128 + 2 * 16) * 320 / 8


def test_a_triggered_step_is_faster_by_no_more_than_its_tensor_collectives():
    plan, ours = mt_nlg(), stack_named(OURS)
    plain = estimate(plan, SELENE, method="closed form")
    triggered = estimate(plan, SELENE, method="closed form", stack=ours.model_copy(update={"tile_triggered": True}))
    assert plain.parts.tensor_collectives / 2 <= triggered.parts.tensor_collectives
    assert triggered.seconds < plain.seconds


@pytest.mark.parametrize(
    ("over", "shown"),
    [
        ({}, lambda h: 1 - h),
        ({"schedule": "zb-h1"}, lambda h: 1),
        ({"sequence_parallel": True}, lambda h: 0.5 + 0.5 * (1 - h) + 0.5 * (1 - h)),
        ({"sequence_parallel": True, "schedule": "zb-h1"}, lambda h: 0.5 + 0.5 + 0.5 * (1 - h)),
    ],
)
def test_the_backward_sums_beside_the_weights_product_and_gathers_again_beside_another(over, shown):
    """The gathered gradient, the sum and the inputs gathered again are counted in units of the forward's messages."""
    plan = mt_nlg(recompute={"mode": "none"}, **over)
    pieces = prices(at(plan))
    hidden = shipped_constants().tensor_overlap
    assert 0 < hidden < 1
    assert pieces.layer_backward.tensor == pytest.approx(shown(hidden) * pieces.layer_forward.tensor)
    cores = this_machine(8, 8 << 30)  # CPU cores move the bytes themselves
    pieces = prices(setting(case_of(plan), cores, stack_named(OURS), shipped_constants()))
    assert pieces.layer_backward.tensor == pytest.approx(shown(0) * pieces.layer_forward.tensor)


def test_chunks_hide_collectives_until_their_starts_cost_more():
    plan = mt_nlg()
    seconds = {
        n: estimate(plan.model_copy(update={"row_chunks": n}), SELENE, method="closed form").parts.tensor_collectives
        for n in (1, 2, 4, 4096)
    }
    assert seconds[4] < seconds[2] < seconds[1] < seconds[4096]


def test_without_tensor_ranks_there_is_nothing_to_cut():
    case = replace(case_of(mt_nlg()), tensor=1, row_chunks=4)
    one, many = (setting(replace(case, row_chunks=n), SELENE, stack_named(OURS), shipped_constants()) for n in (1, 4))
    assert prices(one).layer_forward.total == prices(many).layer_forward.total


@pytest.mark.parametrize(("work", "moving"), TIMES)
def test_a_ring_takes_the_longer_of_its_products_and_its_messages(work, moving):
    assert ring_seconds(work, moving, 1) == work
    assert ring_seconds(work, 0.0, 4) == 4 * work and ring_seconds(0.0, moving, 4) == 3 * moving
    assert max(4 * work, 3 * moving) <= ring_seconds(work, moving, 4) <= 4 * work + 3 * moving


def in_ring(**over):
    return mt_nlg(sequence_parallel=True, recompute={"mode": "none"}, overlap_tensor=True, **over)


@pytest.mark.parametrize(("over", "count"), [({}, 6), ({"schedule": "zb-h1"}, 8)])
def test_a_ring_is_never_faster_than_product_or_messages_and_contention_never_helps(over, count):
    here = at(in_ring(**over))
    found = [seconds_in_ring(here, p) for p in ring_products(here.case)]
    assert len(found) == count  # backward sums are in a ring only if weight gradients are deferred
    for p, s in zip(ring_products(here.case), found, strict=True):
        pieces = 8 * here.device.product(here.case.positions / 8, p.columns, p.inner)
        assert pieces <= s.ideal <= s.contended and s.alone > 0


def test_a_step_is_shorter_by_what_its_rings_spare():
    with_ring, without = in_ring(), in_ring().model_copy(update={"overlap_tensor": False})
    ours, plain = prices(at(with_ring)), prices(at(without))
    spared = spared_seconds(at(with_ring))
    factor = at(without).slowness
    for name, each in zip(("layer_forward", "layer_backward"), spared, strict=True):
        a, b = getattr(ours, name), getattr(plain, name)
        assert b.tensor - a.tensor == pytest.approx(each * factor) and a.tensor > 0, name
        assert b.compute == a.compute


def test_cores_that_move_the_bytes_themselves_gain_nothing_by_a_ring():
    cores = this_machine(8, 8 << 30)
    slower = spared_seconds(setting(case_of(in_ring()), cores, stack_named(OURS), shipped_constants()))
    assert max(slower) <= 0
