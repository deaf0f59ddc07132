"""Laws of the closed form, over random plans at once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost.plans import mt_nlg, small
from trivium.cost.case import Case, case_of, take
from trivium.cost.constants import prior_constants
from trivium.cost.estimate import estimate
from trivium.cost.hardware import Link, machine_named, this_machine
from trivium.cost.stack import stack_named, stacks
from trivium.cost.step_time import SCHEDULES, step

SELENE = machine_named("selene")
MEGATRON = stack_named("megatron-2022")
PRIOR = prior_constants()


def many(seed: int = 0, size: int = 60) -> Case:
    """Draw random layouts of a 530B-like model, dense and recomputed, with every ZeRO stage."""
    draw = np.random.default_rng(seed)
    return replace(
        case_of(mt_nlg()),
        tensor=draw.choice([1, 2, 4, 8], size),
        pipeline=draw.choice([1, 3, 5, 35], size),
        context=draw.choice([1, 2], size),
        data=draw.choice([1, 2, 8], size),
        micro=draw.choice([1, 2, 4], size),
        micro_batches=draw.choice([1, 7, 64], size),
        recompute=draw.choice([0, 1, 2], size),
        zero=draw.choice([0, 1, 2, 3], size),
        sequence_parallel=draw.choice([0, 1], size),
        scores_kept=draw.choice([0, 1], size),
    )


def seconds(case: Case, machine=SELENE, stack=MEGATRON, constants=PRIOR, **how):
    return np.asarray(step(case, machine, stack, constants, **how).parts.seconds)


@pytest.mark.broad
@pytest.mark.parametrize("stack", sorted(stacks()))
def test_a_plan_alone_costs_what_it_costs_among_others(stack):
    case = many()
    together = seconds(case, stack=stack_named(stack))
    alone = [float(seconds(take(case, i), stack=stack_named(stack))) for i in range(together.size)]
    assert together == pytest.approx(alone)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_parts_are_never_negative(schedule):
    parts = vars(step(many(), SELENE, MEGATRON, PRIOR, schedule=SCHEDULES[schedule]).parts)
    assert all((np.asarray(part) >= 0).all() for part in parts.values())


@given(factor=st.floats(1, 100), field=st.sampled_from(["memory_bandwidth", "node_link", "fabric_link", "peak"]))
@settings(max_examples=30, deadline=None)
def test_a_faster_machine_is_never_slower(factor, field):
    value = getattr(SELENE, field)
    if isinstance(value, Link):
        faster = value.model_copy(update={"bandwidth": value.bandwidth * factor})
    elif field == "peak":
        faster = value.model_copy(update={"bf16": value.bf16 * factor, "fp32": value.fp32 * factor})
    else:
        faster = value * factor
    case = many()
    assert (seconds(case, SELENE.model_copy(update={field: faster})) <= seconds(case) * (1 + 1e-12)).all()


def test_twice_the_micro_batches_take_twice_the_steady_state():
    """Filling, reduction and optimizer are paid once, so the second half costs what the third quarter costs."""
    case = replace(many(), micro_batches=8, zero=1)
    one, two, four = (seconds(replace(case, micro_batches=m)) for m in (64, 128, 256))
    assert four - two == pytest.approx(2 * (two - one))


def test_without_latency_and_with_endless_bandwidth_only_work_and_the_bubble_are_left():
    free = Link(bandwidth=1e30, efficiency=1.0, latency_seconds=0.0)
    machine = SELENE.model_copy(update={"node_link": free, "fabric_link": free})
    parts = step(many(), machine, MEGATRON, PRIOR).parts
    for name in ("tensor_collectives", "context_collectives", "pipeline_transfers"):
        assert np.asarray(getattr(parts, name)) == pytest.approx(0, abs=1e-9)
    assert np.asarray(parts.data_collectives) == pytest.approx(0, abs=1e-6)


def test_a_bound_of_the_roofline_holds_for_every_plan():
    """No step is shorter than its matrix products at peak."""
    case = many()
    layer = 2 * case.positions * case.hidden**2 * 12 / case.tensor * 3
    ideal = case.micro_batches * layer * case.layers / case.pipeline / SELENE.peak.bf16
    assert (seconds(case) >= ideal).all()


def test_recomputing_more_takes_longer_and_fused_accumulation_less():
    case = replace(many(), micro_batches=4)
    modes = [seconds(replace(case, recompute=mode)) for mode in (0, 1, 2)]
    assert (modes[0] < modes[1]).all() and (modes[1] < modes[2]).all()
    unfused = seconds(case, stack=MEGATRON.model_copy(update={"fused_accumulation": False}))
    assert (seconds(case) < unfused).all()


def test_more_nodes_of_one_plan_are_never_faster():
    """The same layout on nodes of one device sends everything over the fabric."""
    scattered = SELENE.model_copy(update={"devices_per_node": 1, "nodes": 8 * 560})
    assert (seconds(many()) <= seconds(many(), scattered)).all()


@pytest.mark.parametrize("chunks", [2, 3])
def test_chunks_divide_the_time_that_fills_the_pipeline(chunks):
    case = replace(case_of(mt_nlg()), micro_batches=70)
    one, several = (step(replace(case, chunks=c), SELENE, MEGATRON, PRIOR).parts for c in (1, chunks))
    assert several.bubble == pytest.approx(one.bubble / chunks)


def test_embedding_and_logits_that_count_as_layers_leave_the_ends_fewer():
    """Each of 35 ranks has 3 of 105 layers; with lighter ends, the busiest rank is not the one with the logits."""
    case = replace(case_of(mt_nlg()), layers=103, ends_lighter=1)
    assert seconds(case) < seconds(replace(case, layers=105, ends_lighter=0))


def test_ranks_that_share_cores_take_their_time_together():
    case = case_of(small())
    one, many_cores = this_machine(1, 8 << 30), this_machine(64, 8 << 30)
    assert seconds(case, one, stack_named("trivium")) > 4 * seconds(case, many_cores, stack_named("trivium"))


def test_constants_measured_on_a_machine_hold_there():
    slow = SELENE.model_copy(update={"constants": {"gemm_ampere": PRIOR.gemm_ampere / 2}})
    assert (seconds(many(), slow) > seconds(many())).all()
    assert seconds(many(), slow) == pytest.approx(
        seconds(many(), constants=PRIOR.with_values({"gemm_ampere": PRIOR.gemm_ampere / 2}))
    )


OURS = stack_named("trivium")
TOGETHER = {"context": 4, "tensor": 1, "pipeline": 1, "sequence_parallel": 0, "zero": 0, "recompute": 0}


def slow_fabric(factor: float):
    """Return Selene with a fabric that is slower by `factor`."""
    link = SELENE.fabric_link
    return SELENE.model_copy(update={"fabric_link": link.model_copy(update={"bandwidth": link.bandwidth / factor})})


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_traffic_of_replicas_hides_behind_work_never_more_than_either(zero):
    case = replace(many(), zero=zero, data=8)
    bare = OURS.model_copy(update={"overlaps_data": False})
    shown = [
        np.asarray(step(case, SELENE, stack, PRIOR.with_values({"data_overlap": overlap})).parts.data_collectives)
        for stack, overlap in ((bare, 0.5), (OURS, 0.0), (OURS, 0.5), (OURS, 1.0))
    ]
    assert shown[1] == pytest.approx(shown[0])
    assert (shown[3] < shown[2]).all() and (shown[2] < shown[1]).all() and (shown[3] >= 0).all()


@pytest.mark.parametrize("zero", [0, 1])
def test_a_recorded_step_hides_its_reductions_as_others_do(zero):
    """At ZeRO stage 1 the gather of weights overlaps with the update, and unless recorded also with the forward."""
    case, perfect = replace(case_of(mt_nlg()), zero=zero), PRIOR.with_values({"data_overlap": 1.0})
    replays, bare = (OURS.model_copy(update=more) for more in ({"replays": True}, {"overlaps_data": False}))
    hidden, recorded, bare = (
        step(replace(case, recorded=records), SELENE, stack, perfect).parts.data_collectives
        for records, stack in ((0, replays), (1, replays), (1, bare))
    )
    if zero == 0:
        assert hidden == pytest.approx(recorded, rel=0.01) and recorded < bare
    else:
        assert hidden < recorded < bare


def test_a_reduction_that_takes_much_longer_than_the_work_beside_it_is_shown_but_for_that_work():
    """Twice as slow a fabric then adds all of the longer traffic."""
    case = replace(case_of(mt_nlg()), zero=1, micro_batches=4)
    parts = [step(case, slow_fabric(f), OURS, PRIOR).parts.data_collectives for f in (1e4, 2e4, 3e4)]
    assert parts[2] - parts[1] == pytest.approx(parts[1] - parts[0])


def test_stage_2_reduces_after_every_micro_batch_unless_the_stack_sums_them_first():
    case, slow = replace(case_of(mt_nlg()), zero=2, micro_batches=8), slow_fabric(1e6)
    once = OURS.model_copy(update={"reduces_often": False})
    often, one_sum, stage_1 = (
        step(c, slow, stack, PRIOR).parts.data_collectives
        for c, stack in ((case, OURS), (case, once), (replace(case, zero=1), OURS))
    )
    assert one_sum == pytest.approx(stage_1)
    assert 4 < often / one_sum < 8  # 8 reductions and a gather, over one and a gather


def test_nothing_hides_where_the_ranks_own_cores_move_the_bytes():
    case = replace(case_of(mt_nlg()), **TOGETHER, micro_batches=4)
    shared = this_machine(8, 8 << 40)
    for flag in ("overlaps_data", "overlaps_context"):
        without = OURS.model_copy(update={flag: False})
        assert seconds(case, shared, OURS) == seconds(case, shared, without)
        assert seconds(case, SELENE, OURS) < seconds(case, SELENE, without)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_how_much_hides_does_not_matter_on_shared_cores(zero):
    case = replace(case_of(mt_nlg()), **{**TOGETHER, "zero": zero}, micro_batches=4)
    none, all_of_it = (PRIOR.with_values({"data_overlap": share}) for share in (0.0, 1.0))
    shared = this_machine(8, 8 << 40)
    assert seconds(case, shared, OURS, none) == seconds(case, shared, OURS, all_of_it)
    assert seconds(case, SELENE, OURS, none) > seconds(case, SELENE, OURS, all_of_it)


def test_where_attention_takes_longer_than_messages_only_the_last_gradients_of_a_ring_are_shown():
    """Four ranks with perfect overlap: forward hides all three messages, backward all but the last."""
    case = replace(case_of(mt_nlg()), **TOGETHER, sequence=1 << 20, micro=1, micro_batches=1)
    perfect = PRIOR.with_values({"data_overlap": 1.0})
    hidden, bare = (
        step(case, SELENE, stack, perfect).parts.context_collectives
        for stack in (OURS, OURS.model_copy(update={"overlaps_context": False}))
    )
    # Forward there are 3 messages of keys, backward 3 of keys and 4 of gradients, which are twice as wide.
    assert hidden / bare == pytest.approx(2 / (3 + 3 + 4 * 2), rel=1e-3)


def test_a_ring_over_nodes_sends_from_neighbour_to_neighbour_over_one_card():
    """Other ranks of the node do not matter. A ring of gradients uses the cards of all its ranks in the node."""
    still = OURS.model_copy(update={"overlaps_context": False})
    case = replace(case_of(mt_nlg()), **TOGETHER, sequence=1 << 16, micro_batches=1)
    free = SELENE.fabric_link.model_copy(update={"latency_seconds": 0.0, "start_seconds": 0.0})
    inside = SELENE.node_link.model_copy(update={"latency_seconds": 0.0, "start_seconds": 0.0})
    machine = SELENE.model_copy(update={"fabric_link": free, "node_link": inside})
    ring = step(replace(case, context=16), machine, still, PRIOR).parts.context_collectives
    keys = 2 * case.hidden * case.sequence / 16 * 2  # bytes of a rank's keys and values, in bf16
    sent = case.layers * keys * (15 + 15 + 2 * 16)  # forward, backward, and gradients of 4 bytes
    assert ring == pytest.approx(sent / (free.effective_bandwidth * PRIOR.fabric), rel=0.05)


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v"])
@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_few_micro_batches_are_priced_near_what_the_simulation_says(schedule, micro_batches):
    chunks = 2 if schedule == "zb-v" else 1
    plan = mt_nlg(
        model={"layers": 32, "hidden": 4096, "heads": 32},
        layout={"tensor": 1, "pipeline": 16, "chunks": chunks, "data": 1},
        schedule=schedule,
        batch={"sequences": micro_batches},
    )
    closed, simulated = (estimate(plan, SELENE, method=m).seconds for m in ("closed form", "simulated"))
    assert closed == pytest.approx(simulated, rel=0.12)


def test_chunks_leave_more_work_beside_the_reduction_of_gradients():
    """Megatron Core reduces each chunk's gradients when its last micro-batch is done; with one chunk all wait."""
    core = stack_named("megatron-core").model_copy(update={"overlaps_data": True})
    at_once = core.model_copy(update={"reduces_by_chunk": False})
    case = replace(case_of(mt_nlg()), zero=1, micro_batches=70)

    def shown(chunks, stack):
        return step(replace(case, chunks=chunks), SELENE, stack, PRIOR).parts.data_collectives

    assert shown(3, core) < shown(3, at_once)
    assert shown(1, core) == shown(1, at_once)


def test_tensor_collectives_of_the_forward_are_hidden_where_the_stack_pipelines_them():
    core = stack_named("megatron-core")
    plain = core.model_copy(update={"overlaps_tensor_forward": False})
    case = case_of(mt_nlg())
    hidden, whole = (step(case, SELENE, stack, PRIOR).parts.tensor_collectives for stack in (core, plain))
    assert hidden < whole < 2 * hidden


def test_a_stack_whose_attention_kernel_is_known_takes_its_speed_and_no_other_constant():
    eos, core = machine_named("eos"), stack_named("megatron-core")
    case = replace(case_of(mt_nlg()), scores_kept=0)
    own = step(case, eos, core, PRIOR).parts.seconds
    other = core.model_copy(update={"attention": None})
    assert own == step(case, eos, other, PRIOR.with_values({"flash_hopper": core.attention})).parts.seconds
    assert own < step(case, eos, other, PRIOR).parts.seconds
