"""Laws of one layer's time, and of the pieces around it: each is asked against arithmetic of its own."""

from dataclasses import replace

import pytest

from cost.plans import mt_nlg
from trivium.cost.case import LAYER, Case, case_of
from trivium.cost.constants import prior_constants
from trivium.cost.hardware import machine_named
from trivium.cost.layer import layer_work
from trivium.cost.prices import Prices, prices
from trivium.cost.rank_parameters import layer_parameters
from trivium.cost.replicas import Fullest, data_seconds, optimizer_seconds
from trivium.cost.setting import Setting, setting
from trivium.cost.stack import Stack, stack_named, stacks

SELENE, OURS = machine_named("selene"), stack_named("trivium")
CASE = case_of(mt_nlg())


def at(stack: Stack = OURS, case: Case = CASE, **over: float) -> Setting:
    return setting(replace(case, **over), SELENE, stack, prior_constants())


def priced(stack: Stack = OURS, **over: float) -> Prices:
    return prices(at(stack, **over))


@pytest.mark.parametrize("stack", sorted(stacks()))
def test_the_gate_of_a_feed_forward_is_a_third_product_forward_and_two_more_backward(stack: str) -> None:
    here = at(stack_named(stack))
    without, gated = (layer_work(replace(CASE, gated=n), here.device, here.stack) for n in (0, 1))
    product = 2 * CASE.positions * CASE.hidden * CASE.ffn / CASE.tensor / here.device.peak
    assert product <= gated.forward - without.forward < 2 * product
    assert 2 * product <= gated.backward - without.backward < 4 * product


def test_tensor_ranks_share_the_activation_function_that_is_computed_again() -> None:
    here, launch = at(), prior_constants().operation_seconds
    again = {}
    for tensor in (1, 4):
        case = replace(CASE, tensor=tensor, recompute=0)
        once, twice = (
            layer_work(replace(case, function_again=n), here.device, here.stack).again for n in (0, 1)
        )
        again[tensor] = float(twice - once) - launch
    assert again[1] == pytest.approx(4 * again[4]) and again[1] > 0


def test_a_layer_that_ends_with_a_norm_is_computed_again_to_its_end() -> None:
    stack = OURS.model_copy(update={"stops_early": True})
    before, after = (
        layer_work(replace(CASE, norm_after=n, recompute=LAYER), at().device, stack) for n in (0, 1)
    )
    assert after.again == pytest.approx(stack.recomputed * after.forward)
    assert before.again < after.again


def test_the_first_micro_batch_is_added_to_nothing() -> None:
    stack = OURS.model_copy(update={"fused_accumulation": False})
    one, many = (priced(stack, micro_batches=n).layer_backward.compute for n in (1, 2))
    here = at(stack)
    moved = (CASE.weight_bytes + 2 * CASE.gradient_bytes) * layer_parameters(CASE) / here.device.memory
    assert many - one == pytest.approx(moved * here.slowness)


def test_at_stage_3_both_uses_of_a_tied_table_on_one_rank_are_one_gradient() -> None:
    whole = {"pipeline": 1, "zero": 3, "ends_together": 1, "data": 8}
    tied, untied = (priced(tied=n, **whole) for n in (1, 0))
    assert tied.embedding_backward.gathers == 0 and untied.embedding_backward.gathers > 0
    assert tied.head_backward.gathers == pytest.approx(untied.head_backward.gathers)


def test_activations_that_are_sent_in_slices_take_the_cards_of_all_tensor_ranks() -> None:
    sliced, whole = (OURS.model_copy(update={"split_transfers": split}) for split in (True, False))
    across = {"tensor": 8, "pipeline": 8, "sequence_parallel": 0}
    assert priced(sliced, **across).transfer < priced(whole, **across).transfer / 2
    assert (
        priced(sliced, **across | {"tensor": 1}).transfer == priced(whole, **across | {"tensor": 1}).transfer
    )


def test_an_optimizer_takes_as_long_as_its_slice_is_large_however_many_copies_there_are() -> None:
    full = Fullest(1e9, 3)
    alone, copies, sharded = (
        float(optimizer_seconds(at(data=data, shards=shards), full))
        for data, shards in ((4, 0), (16, 4), (16, 0))
    )
    assert alone == copies > sharded


def test_weights_are_whole_where_an_optimizer_works_on_slices_until_stage_3_slices_them_too() -> None:
    first, second, third = (float(optimizer_seconds(at(zero=n, data=8), Fullest(1e9, 3))) for n in (1, 2, 3))
    assert first == second > third


def test_gradients_travel_in_their_own_dtype_and_weights_in_theirs() -> None:
    stack, full = OURS.model_copy(update={"overlaps_data": False, "buckets": False}), Fullest(1e9, 3)
    wide, narrow = (at(stack, zero=1, data=8, tied=0, weight_bytes=2, reduction_bytes=n) for n in (4, 2))
    seconds = [float(data_seconds(here, prices(here), full)) for here in (wide, narrow)]
    road = wide.road(8, wide.strides.sharers)
    assert seconds[0] - seconds[1] == pytest.approx(float(2 * 1e9 * 7 / 8 / road.bandwidth))
