"""Laws of one layer's time, and of the pieces around it: each is asked against arithmetic of its own."""

from dataclasses import replace
from typing import Any

import pytest

from cost.plans import mt_nlg
from trivium.certify.layouts import ROTARY
from trivium.cost.case import LAYER, NONE, Case, case_of
from trivium.cost.collectives import all_reduce_seconds, exchange_seconds
from trivium.cost.constants import prior_constants
from trivium.cost.hardware import machine_named
from trivium.cost.layer import attention_seconds, ends_work, layer_work
from trivium.cost.prices import Prices, context_seconds, prices
from trivium.cost.rank_parameters import layer_parameters
from trivium.cost.replicas import STEP_OPERATIONS, Fullest, data_seconds, optimizer_seconds
from trivium.cost.setting import Setting, setting
from trivium.cost.stack import Stack, stack_named, stacks
from trivium.plan.layers.mlp_gated import MlpGated

SELENE, OURS = machine_named("selene"), stack_named("trivium")
CASE = case_of(mt_nlg())
COLUMNS = 4 * 20480  # of the feed-forward half


def shaped(**model: Any) -> Case:
    """The case of MT-NLG with another model."""
    return case_of(mt_nlg(model=model))


def at(stack: Stack = OURS, case: Case = CASE, **over: float) -> Setting:
    return setting(replace(case, **over), SELENE, stack, prior_constants())


def priced(stack: Stack = OURS, **over: float) -> Prices:
    return prices(at(stack, **over))


@pytest.mark.parametrize("stack", sorted(stacks()))
def test_the_gate_of_a_feed_forward_is_a_third_product_forward_and_two_more_backward(stack: str) -> None:
    here = at(stack_named(stack))
    ((layer, _),) = CASE.different_layers
    with_gate = replace(CASE, different_layers=((replace(layer, mlp=MlpGated(20480, COLUMNS)), 1.0),))
    without, gated = (layer_work(case, here.device, here.stack) for case in (CASE, with_gate))
    product = 2 * CASE.positions * CASE.hidden * COLUMNS / CASE.tensor / here.device.peak
    assert product <= gated.forward - without.forward < 2 * product
    assert 2 * product <= gated.backward - without.backward < 4 * product


def test_tensor_ranks_share_the_activation_function_that_is_computed_again() -> None:
    here, launch = at(), prior_constants().operation_seconds
    again = {}
    for tensor in (1, 4):
        case = replace(CASE, tensor=tensor, recompute=0)
        once, twice = (layer_work(replace(case, function_again=n), here.device, here.stack).again for n in (0, 1))
        again[tensor] = float(twice - once) - launch
    assert again[1] == pytest.approx(4 * again[4]) and again[1] > 0


def test_a_layer_that_ends_with_a_norm_is_computed_again_to_its_end() -> None:
    stack = OURS.model_copy(update={"stops_early": True})
    before, after = (
        layer_work(replace(shaped(**ROTARY, norm_position=n), recompute=LAYER), at().device, stack)
        for n in ("before", "after")
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


@pytest.mark.parametrize(("recompute", "again"), [(NONE, 0), (LAYER, 1)])
def test_a_stack_that_gathers_by_parameter_copies_each_part_and_hides_nothing(recompute: int, again: int) -> None:
    stack, sharers, matrices = stack_named("deepspeed-zero3-2021"), 384, 4
    whole = {"tensor": 1, "pipeline": 1, "data": sharers, "zero": 3, "recompute": recompute, "reduction_bytes": 2}
    here, found = at(stack, **whole), priced(stack, **whole)
    weights, operation = 2 * layer_parameters(here.case), prior_constants().operation_seconds
    link = here.link(sharers, 1)
    sent = weights * (sharers - 1) / sharers / link.bandwidth
    sent += matrices * (link.start_seconds / 2 + (sharers - 1) * link.hop_seconds)
    copied = 2 * weights / here.device.memory + matrices * sharers * operation
    gather = sent + copied + weights / here.device.memory + matrices * operation
    assert found.layer_forward.gathers / here.slowness == pytest.approx(gather)
    backward = (1 + again) * gather + sent + copied
    assert found.layer_backward.gathers / here.slowness == pytest.approx(backward)


def test_activations_that_are_sent_in_slices_take_the_cards_of_all_tensor_ranks() -> None:
    sliced, whole = (OURS.model_copy(update={"split_transfers": split}) for split in (True, False))
    across = {"tensor": 8, "pipeline": 8, "sequence_parallel": 0}
    assert priced(sliced, **across).transfer < priced(whole, **across).transfer / 2
    assert priced(sliced, **across | {"tensor": 1}).transfer == priced(whole, **across | {"tensor": 1}).transfer


def test_an_optimizer_takes_as_long_as_its_slice_is_large_however_many_copies_there_are() -> None:
    full = Fullest(1e9, 3)
    alone, copies, sharded = (
        float(optimizer_seconds(at(data=data, shards=shards), full)) for data, shards in ((4, 0), (16, 4), (16, 0))
    )
    assert alone == copies > sharded


def test_weights_are_whole_where_an_optimizer_works_on_slices_until_stage_3_slices_them_too() -> None:
    first, second, third = (float(optimizer_seconds(at(zero=n, data=8), Fullest(1e9, 3))) for n in (1, 2, 3))
    assert first == second > third


def test_gradients_travel_in_their_own_dtype_and_weights_in_theirs() -> None:
    stack, full = OURS.model_copy(update={"overlaps_data": False, "buckets": False}), Fullest(1e9, 3)
    wide, narrow = (at(stack, zero=1, data=8, tied=0, weight_bytes=2, reduction_bytes=n) for n in (4, 2))
    seconds = [float(data_seconds(here, prices(here), full)) for here in (wide, narrow)]
    link = wide.link(8, wide.strides.sharers)
    assert seconds[0] - seconds[1] == pytest.approx(float(2 * 1e9 * 7 / 8 / link.bandwidth))


def test_heads_go_for_positions_as_queries_keys_and_values_and_come_back_as_results() -> None:
    here = at(case=shaped(kv_heads=16), ring=0, context=4, tensor=4, recompute=NONE)
    c = here.case
    one_head = c.positions * (20480 // 128) / c.tensor * c.weight_bytes
    moved = ((128 + 2 * 16) * one_head, 128 * one_head)
    fabric = here.constants.fabric
    each = (exchange_seconds(SELENE, n, 4, here.strides.context, fabric) for n in moved)
    forward, backward = context_seconds(here)
    assert float(forward) == pytest.approx(float(sum(each))) == float(backward)


@pytest.mark.parametrize("ring", [0, 1])
def test_a_layer_that_is_computed_again_sends_its_messages_again(ring: int) -> None:
    with_context = {"ring": ring, "context": 4}
    here = at(**with_context)
    forward, _ = context_seconds(here)
    again, kept = (priced(recompute=mode, **with_context) for mode in (LAYER, NONE))
    more = again.layer_backward.context - kept.layer_backward.context
    assert more == pytest.approx(float(forward * here.slowness)) and more > 0
    more = again.layer_backward.tensor - kept.layer_backward.tensor
    assert more == pytest.approx(OURS.recomputed * kept.layer_forward.tensor) and more > 0


@pytest.mark.parametrize("recompute", [NONE, LAYER])
def test_a_faster_device_makes_no_layer_slower_whose_messages_attention_hides(recompute: int) -> None:
    """This includes a host that is slower than both; its time does not depend on what it waits for."""
    small = shaped(hidden=1024, heads=16, sequence=4096)
    case = replace(small, ring=1, context=8, recompute=recompute, tensor=1, micro=1)
    seconds, shown = [], []
    for faster in (1, 2, 4, 8):
        peak = SELENE.peak.model_copy(update={"bf16": SELENE.peak.bf16 * faster})
        machine = SELENE.model_copy(update={"peak": peak})
        found = prices(setting(case, machine, OURS, prior_constants()))
        seconds.append(float(found.layer_forward.total + found.layer_backward.total))
        shown.append(float(found.layer_forward.context))
    assert seconds == sorted(seconds, reverse=True)
    assert shown[-1] > shown[0], "attention hides less"


def test_a_norm_over_all_heads_and_a_split_vocabulary_send_a_few_numbers_of_every_position() -> None:
    here = at(recompute=NONE)
    link = here.link(CASE.tensor, here.strides.tensor)
    numbers = float(all_reduce_seconds(8 * CASE.positions, CASE.tensor, link)) * here.slowness
    over, plain = (prices(at(case=shaped(**ROTARY, qk_norm=n), recompute=NONE)) for n in ("all_heads", "none"))
    for one, other in ((over.layer_forward, plain.layer_forward), (over.layer_backward, plain.layer_backward)):
        assert one.tensor - other.tensor == pytest.approx(numbers)
    # the largest score, the sum of exponentials and the target's score
    assert plain.head_forward.tensor == pytest.approx(3 * numbers)


def test_attention_through_windows_takes_the_share_of_pairs_that_they_leave() -> None:
    device, launch = at().device, prior_constants().operation_seconds
    whole, part = (attention_seconds(shaped(window=n), device) for n in (None, 512))
    share = (512 * 513 / 2 + (2048 - 512) * 512) / (2048 * 2049 / 2)
    for one, other in zip(whole, part, strict=True):
        assert share * (float(one) - launch) == pytest.approx(float(other) - launch)


def test_wider_elements_move_more_bytes_and_tensor_ranks_share_positions_between_regions() -> None:
    launches = 4 * prior_constants().operation_seconds
    narrow, wide = (at(weight_bytes=n) for n in (2, 4))
    two, four = (float(ends_work(h.case, h.device, h.stack).embedding) - launches for h in (narrow, wide))
    assert four == pytest.approx(2 * two)
    spared = {}
    for tensor in (2, 8):
        whole, shared = (
            layer_work(replace(CASE, tensor=tensor, sequence_parallel=n), narrow.device, narrow.stack) for n in (0, 1)
        )
        spared[tensor] = float(whole.forward - shared.forward)
    assert spared[8] / spared[2] == pytest.approx((1 - 1 / 8) / (1 - 1 / 2)) and spared[2] > 0


def test_a_step_of_hardly_any_parameters_still_launches_its_operations() -> None:
    launch = prior_constants().launch_seconds
    assert float(optimizer_seconds(at(), Fullest(0.0, 3))) == pytest.approx(STEP_OPERATIONS * launch)
