import random
from dataclasses import replace
from itertools import product as product_of
from typing import Any, get_args

import pytest

from cost.counted_memory import counted
from cost.plans import mt_nlg, small
from plans import swept
from trivium.certify.layouts import ROTARY
from trivium.config import merge
from trivium.cost.activations import embedding_bytes, head_bytes, layer_bytes, logits_bytes
from trivium.cost.case import ATTENTION, LAYER, MODES, NONE, case_of
from trivium.cost.stages import layers_by_stage
from trivium.kernels.cpu import block_attention, gelu, narrow_attention, product
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.plan.precision import Precision

WIDE = {"model": {"layers": 3}, "layout": {"pipeline": 1, "data": 1}, "batch": {"sequences": 2, "micro": 2}}
SAMPLED = 25  # layouts of the sweep
MIXED = [{"mode": "layer", "every": 2}, {"activation_function": True}, {"mode": "layer", "activation_function": True}]
LLAMA_405B = {
    **ROTARY,
    "hidden": 16384,
    "heads": 128,
    "kv_heads": 8,
    "ffn": 53248,
    "vocabulary": 128256,
    "head": "untied",
}
WINDOWS = {**LLAMA_405B, "window": 500, "first": [{"times": 1, "window": None}]}
SPLITS = {
    "none": {"layout": {"tensor": 1}},
    "tensor": {"layout": {"tensor": 8}},
    "sequence": {"layout": {"tensor": 8}, "sequence_parallel": True},
    "ring": {"layout": {"tensor": 8, "context": 2}, "sequence_parallel": True},
    "ulysses": {"layout": {"tensor": 4, "context": 2}, "context_attention": "ulysses"},
}

MODELS = [{}, {"dropout": 0.1}, {"documents": "apart"}, LLAMA_405B, WINDOWS]
RECOMPUTES = [{"mode": m} for m in MODES] + MIXED
# A fifth of all combinations, among them any two values of different factors.
IN_PAIRS = [
    (model, recompute, split)
    for (a, model), (b, recompute), (c, split) in product_of(*map(enumerate, (MODELS, RECOMPUTES, SPLITS)))
    if (a + b + c) % 5 == 0
]


@pytest.fixture(autouse=True)
def in_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few pieces: the saved tensors do not depend on their size, and each piece of a meta tensor takes time."""
    monkeypatch.setattr(gelu, "PIECE_ELEMENTS", 1 << 40)
    monkeypatch.setattr(product, "WIDENED_BLOCK_ELEMENTS", 1 << 60)
    monkeypatch.setattr(narrow_attention, "BLOCK_SCORES", 1 << 40)
    monkeypatch.setattr(narrow_attention, "BLOCK_QUERIES_IN_LONG", 1 << 12)
    monkeypatch.setattr(block_attention, "BLOCK_ELEMENTS", 1 << 40)
    for name in ("BLOCK_QUERIES", "BLOCK_QUERIES_ON_INTEL", "BLOCK_QUERIES_IN_WINDOW"):
        monkeypatch.setattr(block_attention, name, 1 << 9)


def predicted(plan: Plan, stage: int) -> float:
    """Bytes of one micro-batch through a stage."""
    case, layers = case_of(plan), layers_by_stage(plan)[stage]
    total = sum(layer_bytes(case, MODES[plan.recompute.mode_of(n)]) for n in layers)
    total += embedding_bytes(case) if stage == 0 else 0
    last = stage == plan.last_stage
    return float(total + (head_bytes(case) + logits_bytes(case) if last else 0))


@pytest.mark.broad
@pytest.mark.parametrize("number", range(SAMPLED))
def test_predicted_bytes_are_those_counted_on_both_ends_of_a_small_model(number: int) -> None:
    # Adapters: tests/adapters. Expert ranks, where the tokens decide how many rows arrive: experts_test.py.
    bare = [plan for plan in swept(8) if not plan.model.adapters and plan.layout.expert == 1]
    plan = random.Random(0).sample(bare, SAMPLED)[number]
    for weights in ("fp32", "bf16", "fp64"):
        typed = plan.model_copy(update={"precision": Precision(weights=weights)})
        for stage in {0, plan.last_stage}:
            found = counted(typed, stage, "with memory").bytes
            assert found == predicted(typed, stage), f"stage {stage} of {typed}"


def random_plans(number: int) -> list[Plan]:
    """Random legal plans of three stages: the embedding, one layer of any parts, the head."""
    draw, found = random.Random(1), []
    while len(found) < number:
        tensor, context, queries = draw.choice((1, 2, 3)), draw.choice((1, 2, 3)), draw.choice((1, 1, 2, 3))
        groups, apart = tensor * draw.choice((1, 2, context)), draw.choice((True, False))
        names = ("feed_forward", "norm", "norm_position", "wiring", "activation", "positions", "qk_norm", "bias")
        fields = {name: get_args(ModelShape.model_fields[name].annotation) for name in names}
        plan = Plan.model_validate({
            "model": {
                **{name: draw.choice(choices) for name, choices in fields.items()},
                "rope_columns": draw.choice((None, None, 4)),
                "embedding_scale": draw.choice((1.0, 3.0)),
                "residual_scale": draw.choice((1.0, 1.0, 0.3)),
                "logits_scale": draw.choice((1.0, 1.0, 0.3)),
                "score_scale": draw.choice((None, 0.3)),
                "score_cap": draw.choice((None, 2.0)),
                "logits_cap": draw.choice((None, 2.0)),
                "layers": 1,
                "hidden": groups * queries * draw.choice((4, 6, 10)),
                "heads": groups * queries,
                "kv_heads": groups if queries > 1 else None,
                "head_width": draw.choice((None, 8)),
                "ffn": tensor * draw.randint(5, 60),
                "vocabulary": draw.randint(5, 90),
                "vocabulary_multiple": draw.choice((1, 3, 4)),
                "window": draw.choice((None, 1, 3, 7)),
                "sequence": 2 * tensor * context * draw.randint(1, 6),
                "head": draw.choice(("tied", "untied")),
                "documents": "apart" if apart else "joined",
                "end_of_text": 3 if apart else 0,
                "dropout": draw.choice((0.0, 0.1)),
            },
            "layout": {"tensor": tensor, "context": context, "pipeline": 3},
            "batch": {"sequences": 12, "micro": draw.choice((1, 2, 3))},
            "partition": {"layers": (0, 1, 0)},
            "schedule": draw.choice(("1f1b", "zb-h1")),
            "recompute": {"activation_function": draw.choice((True, False)), "mode": draw.choice(tuple(MODES))},
            "precision": {"weights": draw.choice(("bf16", "fp64"))},
            "sequence_parallel": draw.choice((True, False)),
            "context_attention": draw.choice(("ring", "ulysses")),
        })  # fmt: skip
        found += [] if plan.check() else [plan]
    return found


@pytest.mark.parametrize("number", range(4))
def test_each_part_keeps_what_is_counted_in_random_plans(number: int) -> None:
    for plan in random_plans(48)[number::4]:
        for stage in range(3):
            assert counted(plan, stage, "with memory").bytes == predicted(plan, stage), f"{stage} of {plan}"


@pytest.mark.broad
@pytest.mark.parametrize(("model", "recompute", "split"), IN_PAIRS)
def test_predicted_bytes_are_those_counted_at_the_width_of_a_real_model(model, recompute, split) -> None:
    """MT-NLG's layers, and those of the largest Llama 3; no byte of them is allocated."""
    plan = mt_nlg(**merge(merge(WIDE, {"model": model, "recompute": recompute}), SPLITS[split]))
    assert counted(plan, 0).bytes == predicted(plan, 0)


def test_in_the_papers_counting_a_layer_keeps_34_and_5_times_a_s_over_h() -> None:
    case = case_of(small(layout={"tensor": 1}, model={"dropout": 0.1}, precision={"weights": "bf16"}))
    s, b, h, a = 32, 2, 64, 4
    assert layer_bytes(case, NONE, counting="paper") == s * b * h * 34 + 5 * a * s * s * b
    assert layer_bytes(case, ATTENTION, counting="paper") == s * b * h * 34
    again = replace(case, function_again=1)  # without GELU's value, 4 h in 16 bits
    assert layer_bytes(again, ATTENTION, counting="paper") == s * b * h * 26
    assert layer_bytes(case, LAYER, counting="paper") == 2 * s * b * h


def test_in_the_papers_counting_tensor_ranks_split_24_of_the_34_and_sequence_parallelism_the_rest() -> None:
    over = {"model": {"dropout": 0.1}, "precision": {"weights": "bf16"}}
    s, b, h, a, t = 32, 2, 64, 4, 2
    whole, split = s * b * h * 10, s * b * h * 24 + 5 * a * s * s * b
    assert layer_bytes(case_of(small(**over)), NONE, counting="paper") == whole + split // t
    spread = case_of(small(**over, sequence_parallel=True))
    assert layer_bytes(spread, NONE, counting="paper") == (whole + split) // t


@pytest.mark.parametrize("family", ["gpt", "llama"])
@pytest.mark.parametrize("mode", [NONE, ATTENTION, LAYER])
def test_sequence_parallelism_divides_all_that_a_layer_keeps(family: str, mode: int) -> None:
    head = "untied" if family == "llama" else "tied"
    model = {**{"gpt": {}, "llama": ROTARY}[family], "hidden": 512, "heads": 16, "head": head, "dropout": 0.1}
    kept = [
        layer_bytes(case_of(small(model=model, layout={"tensor": t}, sequence_parallel=t > 1)), mode) for t in (1, 8)
    ]
    # Angles of the rotary embedding, queries' and keys', are of all positions that a rank attends from.
    angles = 32 * 32 * 4 if family == "llama" and mode == NONE else 0
    assert kept[1] - angles == (kept[0] - angles) / 8


@pytest.mark.parametrize("model", [{}, LLAMA_405B])
def test_a_compiled_layer_whose_attention_is_computed_again_keeps_all_but_its_result(model: dict[str, Any]) -> None:
    """Measured by torch's allocator for CUDA; where attention or a product is left out of the graph it is as ever."""

    def kept(mode: int, **more: Any) -> float:
        return float(layer_bytes(case_of(small(**merge(alone, more))), mode))

    alone = merge(WIDE, {"model": model, "layout": {"tensor": 1}})
    plan = small(**alone)
    result = plan.batch.micro * plan.model.sequence * plan.model.heads * plan.model.head_columns
    compiled = {"compiled": True}
    assert kept(ATTENTION, **compiled) == kept(NONE) - result * case_of(plan).weight_bytes
    assert kept(NONE, **compiled) == kept(NONE) and kept(LAYER, **compiled) == kept(LAYER)
    for left_out in (
        {"layout": {"tensor": 2}},
        {"layout": {"context": 2}},
        {"model": {"documents": "apart"}},
        {"schedule": "zb-h1"},
    ):
        assert kept(ATTENTION, **compiled, **left_out) == kept(ATTENTION, **left_out)
