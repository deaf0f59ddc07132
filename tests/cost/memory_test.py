import pytest

from cost.plans import mt_nlg, small
from trivium.cost.activations import layer_bytes, logits_bytes
from trivium.cost.buffers import buffer_elements
from trivium.cost.memory import (
    bytes_per_parameter,
    checkpoint_bytes,
    memory_of_rank,
    peak_activation_bytes,
    peak_counts,
    predicted_memory,
    worst_rank,
)
from trivium.cost.stages import layers_by_stage, stages_by_rank
from trivium.plan.layout import Coordinate
from trivium.plan.parameters import count
from trivium.plan.precision import Precision
from trivium.plan.schedule import make_schedule, peak_activations

LAYOUTS = [
    {"layout": {"tensor": 1, "pipeline": 1, "data": 3}, "batch": {"sequences": 24}},
    {"layout": {"tensor": 2, "pipeline": 2, "data": 2}},
    {"layout": {"tensor": 4, "pipeline": 3, "data": 1}},
    {"layout": {"tensor": 1, "pipeline": 2, "data": 1, "chunks": 2}, "schedule": "interleaved"},
    {"layout": {"tensor": 2, "pipeline": 4, "data": 2, "chunks": 2}, "schedule": "interleaved"},
    {"model": {"family": "llama", "kv_heads": 2, "head": "untied"}, "layout": {"tensor": 2, "pipeline": 4}},
]


@pytest.mark.parametrize("over", LAYOUTS)
def test_who_holds_which_stage_is_what_the_plan_says(over):
    plan = small(**over)
    assert list(stages_by_rank(plan)) == [plan.stages_of(p) for p in range(plan.layout.pipeline)]
    assert [plan.layers_of(s) for s in range(plan.layout.stages)] == list(layers_by_stage(plan))


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_each_zero_stage_shards_one_thing_more(weights):
    at, held = Coordinate(0, 0, 0), []
    for zero in range(4):
        estimate = memory_of_rank(small(zero=zero, precision={"weights": weights}), at)
        held.append((estimate.weights, estimate.gradients, estimate.optimizer))
    elements = sum(buffer_elements(small(), 0))
    w, o = (4, 8) if weights == "fp32" else (2, 12)
    assert held[0] == (w * elements, 4 * elements, o * elements)
    assert held[1] == (w * elements, 4 * elements, o * elements // 2)
    assert held[2] == (w * elements, 4 * elements // 2, o * elements // 2)
    assert held[3] == (w * elements // 2, 4 * elements // 2, o * elements // 2)


def test_bytes_per_parameter_are_16_in_fp32_18_in_bf16_and_20_as_the_paper_counts():
    bf16 = Precision(weights="bf16")
    assert bytes_per_parameter(Precision()) == bytes_per_parameter(Precision(), "paper") == 16
    assert (bytes_per_parameter(bf16), bytes_per_parameter(bf16, "paper")) == (18, 20)


def test_the_state_of_mt_nlg_exceeds_ten_terabytes():
    plan = mt_nlg()
    assert count(plan.model) == pytest.approx(529.6e9, rel=0.001)
    assert count(plan.model) * bytes_per_parameter(plan.precision, "paper") == pytest.approx(
        10.6e12, rel=0.01
    )


def test_activation_checkpoints_of_mt_nlg_are_the_papers_for_one_batch_and_for_1920_micro_batches():
    model = mt_nlg().model
    assert checkpoint_bytes(model, 1920, "bf16") == pytest.approx(16.9e12, rel=0.002)
    assert checkpoint_bytes(model, 1, "bf16") == pytest.approx(8.8e9, rel=0.002)


@pytest.mark.parametrize("pipeline", [1, 2, 3, 5])
@pytest.mark.parametrize("micro_batches", [1, 2, 7, 30])
def test_activations_in_flight_are_read_off_the_schedule(pipeline, micro_batches):
    for name in ("gpipe", "1f1b"):
        table = make_schedule(name, pipeline=pipeline, micro_batches=micro_batches)
        expected = tuple(((peak_activations(row),),) for row in table)
        assert peak_counts(name, pipeline, micro_batches, 1) == expected


@pytest.mark.parametrize(("pipeline", "chunks", "groups"), [(2, 2, 4), (2, 3, 8), (4, 2, 5), (4, 3, 1)])
def test_an_interleaved_step_reaches_its_peak_early(pipeline, chunks, groups):
    table = make_schedule("interleaved", pipeline=pipeline, micro_batches=groups * pipeline, chunks=chunks)
    found = peak_counts("interleaved", pipeline, groups * pipeline, chunks)
    assert [max(map(sum, sets)) for sets in found] == [peak_activations(row) for row in table]


@pytest.mark.parametrize(("layers", "hidden", "heads", "pipeline", "chunks", "gib"), [
    (96, 12288, 96, 8, 3, 66.84), (105, 20480, 128, 35, 3, 114.02)
])  # fmt: skip
def test_activations_equal_korthikantis_figure_one(layers, hidden, heads, pipeline, chunks, gib):
    """Per device with tensor 8 and nothing recomputed; the figure counts layers alone."""
    plan = mt_nlg(
        model={"layers": layers, "hidden": hidden, "heads": heads, "dropout": 0.1},
        layout={"pipeline": pipeline, "chunks": chunks, "data": 1},
        batch={"sequences": pipeline * 8},
        schedule="interleaved",
        recompute={"mode": "none"},
    )
    in_flight = sum(peak_counts("interleaved", pipeline, pipeline * 8, chunks)[0][0])
    per_stage = layers // (pipeline * chunks)
    assert in_flight * per_stage * layer_bytes(plan, "none", counting="paper") / 2**30 == pytest.approx(
        gib, rel=0.02
    )


def test_only_the_last_stage_holds_logits():
    plan = small(schedule="1f1b")
    assert memory_of_rank(plan, Coordinate(0, 0, 0)).logits == 0
    rows = plan.model.padded_vocabulary(2) // 2
    assert memory_of_rank(plan, Coordinate(1, 0, 0)).logits == logits_bytes(plan) == 2 * 32 * rows * 4


def test_recomputing_less_holds_more():
    held = [peak_activation_bytes(small(recompute={"mode": m}), 0)[0] for m in ("layer", "attention", "none")]
    assert held == sorted(held)
    assert held[0] < held[2]


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


def test_mt_nlg_fits_its_devices():
    assert 20e9 < worst_rank(mt_nlg())[1].total < 80e9
