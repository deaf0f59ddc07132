import dataclasses
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cost.plans import mt_nlg, small
from trivium.certify.layouts import ROTARY
from trivium.comms.transfers import POSTED_AHEAD
from trivium.cost.activations import input_bytes, layer_bytes, logits_bytes
from trivium.cost.case import NONE, case_of
from trivium.cost.in_flight import peak_counts
from trivium.cost.memory import (
    RECEIVES_AHEAD,
    MemoryEstimate,
    memory_of_cases,
    memory_of_rank,
    predicted_memory,
    worst_rank,
)
from trivium.cost.rank_parameters import elements_of_rank, rank_parameters
from trivium.cost.stages import layers_by_stage, recomputed_layers
from trivium.cost.step_time import SCHEDULES
from trivium.parallel.sharding.zero import together
from trivium.plan.buckets import ALIGNMENT_ELEMENTS, UPDATE_ELEMENTS, bucket_table
from trivium.plan.layout import Coordinate
from trivium.plan.parameters import count
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision

LAYOUTS = [
    {"layout": {"tensor": 1, "pipeline": 1, "data": 3}, "batch": {"sequences": 24}},
    {"layout": {"tensor": 2, "pipeline": 2, "data": 2}},
    {"layout": {"tensor": 4, "pipeline": 3, "data": 1}},
    {"layout": {"tensor": 1, "pipeline": 2, "data": 1, "chunks": 2}, "schedule": "interleaved"},
    {"layout": {"tensor": 2, "pipeline": 4, "data": 2, "chunks": 2}, "schedule": "interleaved"},
    {"model": {**ROTARY, "kv_heads": 2, "head": "untied"}, "layout": {"tensor": 2, "pipeline": 4}},
    {"model": {**ROTARY, "kv_heads": 2, "bias": "qkv", "qk_norm": "each_head"}, "layout": {"tensor": 2}},
    {"model": {**ROTARY, "head_width": 24, "qk_norm": "each_head"}, "sequence_parallel": True},
    {"model": {**ROTARY, "kv_heads": 2, "qk_norm": "all_heads"}, "layout": {"tensor": 2}},
]


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_each_zero_stage_shards_one_thing_more(weights):
    at, held = Coordinate(0, 0, 0), []
    for zero in range(4):
        estimate = memory_of_rank(small(zero=zero, precision={"weights": weights}), at)
        held.append((estimate.weights, estimate.gradients, estimate.optimizer))
    elements = elements_of_rank(small(), 0).held
    w, o = (4, 8) if weights == "fp32" else (2, 12)
    assert held[0] == (w * elements, 4 * elements, o * elements)
    assert held[1] == (w * elements, 4 * elements, o * elements // 2)
    assert held[2] == (w * elements, 4 * elements // 2, o * elements // 2)
    assert held[3] == (w * elements // 2, 4 * elements // 2, o * elements // 2)


def test_bytes_per_parameter_are_16_in_fp32_18_in_bf16_and_20_as_the_paper_counts():
    def per_parameter(weights, counting):
        plan = small(layout={"tensor": 1, "pipeline": 1, "data": 1}, precision={"weights": weights})
        return memory_of_rank(plan, Coordinate(0, 0, 0), counting=counting).state / elements_of_rank(plan, 0).held

    assert [per_parameter("fp32", counting) for counting in ("runtime", "paper")] == [16, 16]
    assert [per_parameter("bf16", counting) for counting in ("runtime", "paper")] == [18, 20]


def test_the_state_of_mt_nlg_exceeds_ten_terabytes():
    plan = mt_nlg(zero=0)
    assert count(plan.model) == pytest.approx(529.6e9, rel=0.001)
    ranks = [Coordinate(pipeline, 0, 0) for pipeline in range(plan.layout.pipeline)]
    state = plan.layout.tensor * sum(memory_of_rank(plan, at, counting="paper").state for at in ranks)
    assert state == pytest.approx(10.6e12, rel=0.01)


def test_activation_checkpoints_of_mt_nlg_are_the_papers_for_one_batch_and_for_1920_micro_batches():
    plan = mt_nlg()
    sequence = plan.model.layers * float(input_bytes(case_of(plan))) / plan.batch.micro
    assert 1920 * sequence == pytest.approx(16.9e12, rel=0.002)
    assert sequence == pytest.approx(8.8e9, rel=0.002)


@pytest.mark.parametrize(("layers", "hidden", "heads", "pipeline", "chunks", "gib"), [
    (96, 12288, 96, 8, 3, 66.84), (105, 20480, 128, 35, 3, 114.02)
])  # fmt: skip
def test_activations_equal_korthikantis_figure_one(layers, hidden, heads, pipeline, chunks, gib):
    """The figure is per device, with tensor 8 and nothing recomputed, and counts layers alone."""
    plan = mt_nlg(
        model={"layers": layers, "hidden": hidden, "heads": heads, "dropout": 0.1},
        layout={"pipeline": pipeline, "chunks": chunks, "data": 1},
        batch={"sequences": pipeline * 8},
        schedule="interleaved",
        recompute={"mode": "none"},
    )
    in_flight = sum(peak_counts("interleaved", pipeline, pipeline * 8, chunks)[0][0])
    per_stage = layers // (pipeline * chunks)
    one = layer_bytes(case_of(plan), NONE, counting="paper")
    assert in_flight * per_stage * one / 2**30 == pytest.approx(gib, rel=0.02)


def test_only_the_last_stage_holds_logits():
    plan = small(schedule="1f1b")
    assert memory_of_rank(plan, Coordinate(0, 0, 0)).logits == 0
    rows, sums = plan.model.padded_vocabulary(2) // 2, 2
    expected = 2 * 32 * (rows + sums) * 4
    assert memory_of_rank(plan, Coordinate(1, 0, 0)).logits == logits_bytes(case_of(plan)) == expected


def test_the_worst_rank_is_no_better_than_any_other():
    plan = small()
    at, worst = worst_rank(plan)
    assert worst == memory_of_rank(plan, at)
    ranks = [plan.layout.coordinate(r) for r in range(plan.layout.world_size)]
    assert max(memory_of_rank(plan, r).total for r in ranks) == worst.total


def test_every_rank_of_a_stage_is_predicted_alike():
    plan = small()
    found = predicted_memory(plan)
    assert list(found) == list(range(8))
    assert all(found[r] == memory_of_rank(plan, plan.layout.coordinate(r)).categories() for r in found)


def drawn(draws: random.Random) -> Plan:
    """Draw a plan with any degrees, also odd ones, and sizes that they divide."""
    tensor, context, data = (draws.choice((1, 2, 3, 5, 7, 13)) for _ in range(3))
    pipeline, chunks, schedule = draws.choice((
        (1, 1, "1f1b"), (1, 1, "zb-h1"), (3, 1, "1f1b-split"), (2, 1, "gpipe"), (2, 2, "interleaved"), (3, 2, "zb-v")
    ))  # fmt: skip
    zero = draws.randrange(4)
    return Plan(
        model={
            **draws.choice(({}, ROTARY)),
            "layers": 6,
            "hidden": draws.choice((64, 1000, 20480)),
            "heads": 2 * tensor * context,
            "kv_heads": draws.choice((None, tensor * context)),
            "head_width": 16,
            "ffn": draws.choice((11, 10000)) * tensor,
            "vocabulary": draws.choice((1000, 51200)),
            "sequence": 16 * tensor * context,
        },
        layout={
            "tensor": tensor, "context": context, "pipeline": pipeline, "data": data, "chunks": chunks,
            "shards": data if zero and data > 1 and draws.random() < 0.5 else None,
        },
        batch={"sequences": 3 * pipeline * data * draws.choice((1, 4)), "micro": 3},
        schedule=schedule,
        precision={"weights": "bf16", "gradients": draws.choice((None, "bf16"))},
        recompute={"mode": draws.choice(("none", "attention", "layer"))},
        zero=zero,
        sequence_parallel=draws.random() < 0.5,
        context_attention=draws.choice(("ring", "ulysses")),
    ).checked()  # fmt: skip


def test_every_legal_plan_holds_whole_bytes() -> None:
    draws = random.Random(0)
    for plan in (drawn(draws) for _ in range(50)):
        assert worst_rank(plan)[1].total > 0, plan


def test_the_total_is_the_state_and_the_larger_of_working_and_reducing():
    held = memory_of_rank(small(zero=1), Coordinate(0, 0, 0))
    assert held.total == held.state + max(held.working, held.reduction)
    assert held.state == sum(held.categories().values()) - held.activations


def wide(sequences: int) -> Plan:
    """Return a plan with more gradients than a bucket holds."""
    model = {"layers": 8, "hidden": 512, "heads": 4, "vocabulary": 64, "sequence": 32}
    return Plan(model=model, batch={"sequences": sequences, "micro": 1}).checked()


def test_with_one_backward_in_a_step_activations_and_most_gradients_never_meet():
    many, one = (memory_of_rank(wide(sequences), Coordinate(0, 0, 0)) for sequences in (2, 1))
    table = 4 * 128 * 512  # both parts of the gradient of a tied table are added once there are both
    assert many.gradients == one.gradients and many.opened == many.gradients + table
    assert one.opened == table and many.activations == one.activations
    fullest, last = one.opened + one.working, one.gradients + max(one.ending, one.reduction)
    assert one.total == one.weights + one.optimizer + max(fullest, last)
    assert one.total < many.total


def lone(mode: str, sequences: int = 1, **over: object) -> MemoryEstimate:
    """Return the estimate of one rank in bf16: 256 positions in a micro-batch, and a vocabulary larger than a layer."""
    model = {"layers": 4, "hidden": 64, "heads": 4, "vocabulary": 4096, "sequence": 256, "head": "untied"}
    batch, precision = {"sequences": sequences, "micro": 1}, {"weights": "bf16"}
    plan = Plan(model=model, batch=batch, precision=precision, recompute={"mode": mode}, **over).checked()
    return memory_of_rank(plan, Coordinate(0, 0, 0))


def test_the_scores_of_a_vocabulary_are_gone_when_a_layer_is_computed_again():
    held, tokens, hidden, rows = lone("layer"), 256, 64, 4096
    # The last norm's input, output and two statistics, and in fp32 the weights of targets.
    head = 2 * tokens * (2 * hidden + 2) + 4 * tokens
    assert held.freed == 2 * tokens * rows + head
    assert held.recomputed > 0 and held.freed > held.recomputed + held.workspace
    assert held.working == held.activations + held.loss
    assert dataclasses.replace(held, loss=0).working == held.activations  # the layer reuses the memory of the logits


def test_a_loss_takes_rows_in_fp32_before_its_backward_and_gradients_in_it():
    """The larger of the two counts. The table's gradient is allocated only once something was added to it."""
    inputs, table, some = 2 * 256 * 64, 2 * 4096 * 64, 4 * 256 * 4096
    (one, opened), (two, _) = ((h.loss, h.opened) for h in (lone("none"), lone("none", sequences=2)))
    assert opened == 2 * 2**18  # one bucket
    assert one == max(some - opened, 2 * inputs)
    assert two == max(some, 2 * inputs + table)


@pytest.mark.parametrize(
    "over", [{"schedule": "zb-h1"}, {"schedule": "interleaved", "layout": {"pipeline": 2, "chunks": 2}}]
)
def test_scores_may_wait_where_weight_gradients_or_other_stages_come_first(over):
    assert lone("layer", 4, **over).freed == 0


WIDE = {"layers": 4, "hidden": 4096, "heads": 64, "sequence": 2048, "vocabulary": 32000, "head": "untied"}
FEW = {"layers": 2, "hidden": 1024, "heads": 16, "sequence": 1024, "vocabulary": 1024, "head": "untied"}
LAYERS, FP32 = {"recompute": {"mode": "layer"}}, {"precision": {"weights": "fp32"}}
TENSOR = {"layout": {"tensor": 2, "data": 4}, "sequence_parallel": True}
SECOND = {"recompute": {"mode": "layer", "every": 2}}
LLAMA = {**ROTARY, "kv_heads": 4}
BILLION = {"layers": 24, "hidden": 2048, "heads": 16, "sequence": 2048, "vocabulary": 50304, "head": "untied"}
ALLOCATED = [
    (WIDE, 4, 4, LAYERS, 18_081_204_736),
    (WIDE, 4, 4, LAYERS | FP32, 18_943_034_880),
    ({**WIDE, "head": "tied"}, 4, 4, LAYERS, 16_246_196_736),
    ({**WIDE, **ROTARY, "kv_heads": 32}, 4, 4, LAYERS, 17_196_681_728),
    ({**WIDE, "vocabulary": 8192}, 8, 2, LAYERS, 16_799_508_992),
    (FEW, 16, 8, LAYERS, 888_619_520),
    (FEW, 16, 8, {}, 1_140_934_144),
    ({**FEW, **ROTARY, "kv_heads": 8}, 16, 8, LAYERS, 905_951_744),
    ({**FEW, "layers": 6, "vocabulary": 16384}, 8, 8, LAYERS, 2_063_616_512),
    ({**FEW, "layers": 6, "vocabulary": 16384, "head": "tied"}, 8, 8, LAYERS, 1_828_735_488),
    ({**FEW, "layers": 24, "vocabulary": 50304}, 8, 8, LAYERS, 7_088_690_688),
    ({**FEW, **LLAMA, "layers": 4, "hidden": 2048, "vocabulary": 4096}, 16, 8, SECOND, 4_926_500_352),
    ({**FEW, "layers": 3, "hidden": 2048, "vocabulary": 4096}, 16, 8, LAYERS | {"compiled": True}, 3_865_484_288),
    (BILLION, 16, 4, LAYERS | TENSOR | {"zero": 1}, 7_174_974_976),
    (BILLION, 16, 2, LAYERS | {"layout": {"data": 8}, "zero": 1}, 11_512_049_152),
    (BILLION, 16, 8, LAYERS | FP32 | {"layout": {"data": 2}, "zero": 0}, 25_036_113_920),
]


@pytest.mark.parametrize(("model", "sequences", "micro", "over", "bytes_of_torch"), ALLOCATED)
def test_a_step_needs_what_torchs_allocator_of_gpus_handed_out(
    model: dict[str, Any], sequences: int, micro: int, over: dict[str, Any], bytes_of_torch: int
) -> None:
    """Measured with torch 2.11 on a CUDA runtime without kernels (benchmarks/pretended.py); cuBLAS's workspaces are not
    in it."""
    given = {"precision": {"weights": "bf16"}, **over}
    plan = Plan.model_validate({"model": model, "batch": {"sequences": sequences, "micro": micro}, **given}).checked()
    assert worst_rank(plan)[1].total == pytest.approx(bytes_of_torch, rel=0.02)


def test_receives_ahead_are_those_of_the_transport():
    assert RECEIVES_AHEAD == POSTED_AHEAD


@pytest.mark.parametrize("layers", range(4, 24))
def test_recomputed_layers_of_a_stage_are_those_that_the_plan_recomputes(layers):
    for every in range(1, 6):
        plan = small(model={"layers": layers}, layout={"pipeline": 4}, recompute={"mode": "layer", "every": every})
        expected = [sum(plan.recompute.mode_of(n) == "layer" for n in plan.layers_of(stage)) for stage in range(4)]
        assert recomputed_layers(plan).tolist() == expected


PLANS = [
    small(**over)
    for over in (
        *LAYOUTS,
        {"recompute": {"mode": "layer", "every": 2}, "model": {"layers": 9}},
        {"layout": {"chunks": 2}, "schedule": "zb-v", "recompute": {"mode": "attention"}, "zero": 2},
        {"layout": {"pipeline": 4}, "schedule": "zb-h1", "sequence_parallel": True, "zero": 3},
        {"layout": {"pipeline": 4}, "schedule": "1f1b-split", "precision": {"weights": "bf16"}},
        {"layout": {"pipeline": 4, "data": 1}, "schedule": "gpipe", "model": {"dropout": 0.1}},
        {"layout": {"context": 2}, "context_attention": "ulysses", "precision": {"weights": "bf16"}},
        {"layout": {"pipeline": 3, "chunks": 2, "data": 1}, "schedule": "interleaved",
         "batch": {"sequences": 12}, "model": {"layers": 9}},
    )
]  # fmt: skip


def most_padding(plan: Plan) -> int:
    """Return the largest number of elements that pad a bucket."""
    return plan.layout.replicas * ALIGNMENT_ELEMENTS - 1 if plan.layout.replicas > 1 else 0


@pytest.mark.parametrize("plan", PLANS)
def test_parameters_of_a_rank_are_its_buffers_without_padding(plan: Plan):
    case = case_of(plan)
    for pipeline, stages in enumerate(plan.stages_by_rank):
        layers = sum(len(layers_by_stage(plan)[s]) for s in stages)
        ends = [int(end in stages) for end in (0, plan.last_stage)]
        padding = elements_of_rank(plan, pipeline).held - rank_parameters(case, layers, *ends)
        assert 0 <= padding <= len(bucket_table(plan, pipeline)) * most_padding(plan)


@pytest.mark.parametrize("plan", PLANS)
def test_the_worst_rank_of_a_case_is_that_of_the_plan_but_for_padding(plan: Plan):
    held, (at, expected) = memory_of_cases(case_of(plan), plan.schedule), worst_rank(plan)
    padding = len(bucket_table(plan, at.pipeline)) * most_padding(plan) * 18  # bytes per parameter
    for name, value in vars(expected).items():
        padded = name in ("weights", "gradients", "opened", "masters", "moments", "unreduced", "ending", "reduction")
        assert getattr(held, name)[0] == pytest.approx(value, abs=padding if padded else 0), name


def test_many_cases_at_once_are_each_case_alone():
    generator = np.random.default_rng(0)
    plans = [plan for plan in PLANS if plan.model == PLANS[1].model]
    assert len(plans) >= 4
    picked = generator.integers(0, len(plans), 200)
    cases = [case_of(plan) for plan in plans]
    varied = [k for k, v in vars(cases[0]).items() if not isinstance(v, tuple)]  # the layers are those of one model
    together = {k: np.array([getattr(cases[n], k) for n in picked]) for k in varied}
    codes = np.array([SCHEDULES[plans[n].schedule] for n in picked])
    totals = memory_of_cases(dataclasses.replace(cases[0], **together), codes).total
    alone = [float(memory_of_cases(cases[n], plans[n].schedule).total[0]) for n in range(len(plans))]
    assert totals.tolist() == [alone[n] for n in picked]


BOTH_NARROW = {"weights": "bf16", "gradients": "bf16"}


@pytest.mark.parametrize("zero", (0, 1))
@pytest.mark.parametrize(("sequences", "kept", "widened"), ((1, 2, 4), (2, 4, 0)))
def test_where_nothing_is_added_gradients_are_narrow_and_those_updated_at_once_are_widened(
    zero: int, sequences: int, kept: int, widened: int
) -> None:
    plan = wide(sequences).model_copy(update={"precision": Precision(weights="bf16"), "zero": zero})
    elements, found = [row.padded for row in bucket_table(plan, 0)], memory_of_rank(plan, Coordinate(0, 0, 0))
    at_once = min(sum(elements), UPDATE_ELEMENTS + max(elements))
    assert found.gradients == kept * sum(elements) and found.reduction == widened * at_once


@pytest.mark.parametrize("layers", (1, 24))
@pytest.mark.parametrize("zero", (0, 1, 2))
def test_those_updated_at_once_are_slices_as_the_runtime_owns_them(zero: int, layers: int) -> None:
    """A slice is a replica's share of a bucket; without ZeRO, the full bucket."""
    model = {"layers": layers, "hidden": 2048, "heads": 16, "vocabulary": 1000, "sequence": 2048}
    plan = Plan(model=model, layout={"data": 5}, batch={"sequences": 10}, precision=BOTH_NARROW, zero=zero).checked()
    slices = [row.padded // (5 if zero else 1) for row in bucket_table(plan, 0)]
    groups = together([SimpleNamespace(master=range(size)) for size in slices], UPDATE_ELEMENTS)
    most, summed = max(sum(len(s.master) for s in group) for group in groups), sum(slices) * (zero == 1)
    widened = (memory_of_rank(plan, Coordinate(0, 0, 0)).reduction - 2 * summed) / 4
    assert widened == pytest.approx(most, abs=max(slices))


def test_a_sum_over_replicas_is_copied_only_where_gradients_are_kept_in_another_dtype():
    """After the last backward: for bf16, the gradients in bf16, a rank's sum and its copy; for fp32, the sum alone."""
    wide, narrow = (
        worst_rank(small(layout={"data": 2}, zero=1, precision={"weights": "bf16", "communication": reduction}))[1]
        for reduction in ("fp32", "bf16")
    )
    elements = wide.gradients // 4
    assert wide.reduction == 4 * elements // 2
    assert narrow.reduction == 2 * (elements + elements // 2) + 4 * elements // 2
