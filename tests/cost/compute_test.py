from typing import Literal

import pytest

from cost.plans import mt_nlg, small
from trivium.certify.layouts import ROTARY
from trivium.cost.case import case_of
from trivium.cost.compute import flops_per_token, hardware_flops, layer_flops, model_flops, stage_flops
from trivium.cost.stages import layers_by_stage
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan


def paper_flops(
    model: ModelShape, sequences: int, *, vocabulary: int, mode: Literal["none", "layer"] = "layer"
) -> float:
    """F = 96 B s L h^2 (1 + s/6h + V/(16 L h)), as printed (SC'21 equation 3; used by MT-NLG section 2.4).

    The printed form recomputes every layer and has ffn = 4 hidden built in; without recomputation it reads
    72 B s L h^2 (1 + s/6h + V/(12 L h)). `vocabulary` counts the padding.
    """
    s, h, layers = model.sequence, model.hidden, model.layers
    factor, share = (96.0, 16) if mode == "layer" else (72.0, 12)
    return factor * sequences * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (share * layers * h))


@pytest.mark.parametrize("mode", ["none", "layer"])
@pytest.mark.parametrize("make", [small, mt_nlg])
def test_our_sum_equals_the_papers_formula_term_by_term(make, mode):
    """No term differs: 24 h^2 per token and layer, 4 s h of attention, 2 h V of logits, each x 3 or x 4.

    Only the vocabulary must be given as executed: padded.
    """
    plan = make(recompute={"mode": mode})
    padded = plan.model.padded_vocabulary(plan.layout.tensor)
    paper = paper_flops(plan.model, plan.batch.sequences, vocabulary=padded, mode=mode)
    assert hardware_flops(plan).total == pytest.approx(paper, rel=1e-12)


def test_mt_nlg_executes_the_flops_behind_its_printed_126_tflops():
    per_device = hardware_flops(mt_nlg()).total / 60.1 / 2240
    assert per_device == pytest.approx(126e12, rel=0.005)


def test_mt_nlg_model_flops_give_the_utilisation_palm_computed_for_it():
    assert model_flops(mt_nlg().model, 1920).total / 60.1 / 2240 / 312e12 == pytest.approx(0.302, abs=0.001)


def test_a_window_counts_as_many_keys_for_every_query_in_the_layers_that_have_it():
    plan = small(model={"window": 8, "first": [{"times": 1, "window": None}]})
    whole, wide = small(), small(model={"window": 32})
    tokens, width = 32 * 32, 4 * (plan.model.heads * plan.model.head_columns)
    layers = plan.model.layers
    spared = 3 * tokens * width * (32 - 8) * (layers - 1)
    assert model_flops(whole.model, 32).total - model_flops(plan.model, 32).total == spared
    assert hardware_flops(whole).total - hardware_flops(plan).total == spared
    assert model_flops(wide.model, 32) == model_flops(whole.model, 32)
    again = small(model={"window": 8, "first": [{"times": 1, "window": None}]}, recompute={"mode": "attention"})
    assert hardware_flops(again).recompute == tokens * width * (32 + 8 * (layers - 1))


def visible(plan: Plan) -> float:
    """The share of the causal pairs of positions that windows leave, over all layers."""
    case = case_of(plan)
    return float(case.of_a_layer(lambda layer: layer.attention.scores(case).visible))


@pytest.mark.parametrize("window", [1, 5, 31, 32, 40])
def test_the_share_of_pairs_that_windows_leave_is_that_of_counting_them(window):
    plan = small(
        model={"window": window, "first": [{"times": 2, "window": None}], "pattern": [{"times": 2}, {"window": None}]}
    )
    layers, sequence = plan.model.layers, plan.model.sequence
    through = [min(plan.model.form_of(n).window or sequence, sequence) for n in range(layers)]
    pairs = [sum(min(query + 1, reach) for query in range(sequence)) for reach in through]
    assert visible(plan) == pytest.approx(sum(pairs) / (layers * sequence * (sequence + 1) / 2))
    assert visible(small()) == visible(mt_nlg()) == 1


def test_model_flops_leave_out_recomputation_and_padding():
    plain, recomputed = small(), small(recompute={"mode": "layer"})
    assert model_flops(plain.model, 32) == model_flops(recomputed.model, 32)
    logits = 3 * 2 * 32 * 32 * 64
    padding = plain.model.padded_vocabulary(2) - plain.model.vocabulary
    assert hardware_flops(plain).total - model_flops(plain.model, 32).total == logits * padding
    assert hardware_flops(recomputed).recompute > 0 == hardware_flops(plain).recompute


def test_recomputing_attention_costs_a_forward_of_its_two_products():
    plan = small(recompute={"mode": "attention"})
    assert hardware_flops(plan).recompute == 8 * 32 * 32 * 4 * 32 * 64


def test_recomputing_every_second_layer_costs_half():
    half, whole = small(recompute={"mode": "layer", "every": 2}), small(recompute={"mode": "layer"})
    assert hardware_flops(half).recompute == hardware_flops(whole).recompute / 2


def test_stages_add_up_to_the_step():
    plan = small(layout={"chunks": 2}, schedule="interleaved")
    step = sum(stage_flops(plan, s, sequences=32).total for s in range(plan.stages))
    assert step == hardware_flops(plan).total
    assert [list(r) for r in layers_by_stage(plan)] == [list(plan.layers_of(s)) for s in range(4)]


def test_heads_of_a_given_width_cost_the_products_of_their_columns():
    shape = {"layers": 1, "hidden": 64, "heads": 4, "kv_heads": 2, "vocabulary": 8, "sequence": 16, "ffn": 96}
    wide = ModelShape(**ROTARY, head_width=24, **shape)
    matrices = 64 * (4 * 24 + 2 * 2 * 24) + 4 * 24 * 64 + 3 * 64 * 96
    assert layer_flops(wide.each_layer[0], 16, 16).forward == 2 * 16 * matrices + 2 * 2 * 16 * 16 * 4 * 24
    narrow = ModelShape(**ROTARY, **shape)
    same = narrow.model_copy(update={"head_width": 16})
    assert layer_flops(narrow.each_layer[0], 16, 16) == layer_flops(same.each_layer[0], 16, 16)


def test_six_flops_per_parameter_and_token_is_the_leading_term():
    """This holds for short sequences and a small vocabulary, also with grouped queries and SwiGLU."""
    model = ModelShape(**ROTARY, layers=4, hidden=4096, heads=32, kv_heads=8, vocabulary=128, sequence=8, head="untied")
    matrices = 4 * (4096 * (4096 * 2 + 2 * 8 * 128) + 3 * 4096 * model.ffn_width)
    assert flops_per_token(model) == pytest.approx(6 * matrices, rel=0.005)
