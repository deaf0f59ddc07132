"""The laws over arrays judge every plan as Plan.check does."""

import itertools

import numpy as np
import pytest

from trivium.certify.layouts import ROTARY
from trivium.plan.float8 import Float8
from trivium.plan.messages import Messages
from trivium.plan.model_shape import ModelShape
from trivium.plan.precision import Precision
from trivium.planner.grid import SCHEDULE_NAMES, Candidates, Grid, Subject
from trivium.planner.laws import LAWS, inside_a_node, laws_of, legal, told

BASE = {"layers": 5, "hidden": 24, "heads": 4, "vocabulary": 37, "vocabulary_multiple": 2, "sequence": 12}
OTHERS = {
    "gpt": {},
    "llama with fewer key-value heads": {**ROTARY, "heads": 6, "kv_heads": 2, "ffn": 30},
    "gpt with an odd vocabulary and width": {"vocabulary": 1013, "ffn": 50, "layers": 4, "heads": 8},
    "llama with heads of their own width": {
        **ROTARY,
        "heads": 5,
        "head_width": 6,
        "qk_norm": "each_head",
        "bias": "qkv",
        "ffn": 40,
    },
    "llama with one key-value head": {**ROTARY, "kv_heads": 1, "head": "untied", "sequence": 16},
}
EXPERTS = {**ROTARY, "ffn": 12, "feed_forward": "experts", "experts": {"count": 6, "chosen": 2, "shared": 24}}
OTHERS["experts after a dense layer"] = {**EXPERTS, "first": [{"times": 1, "feed_forward": "gated", "experts": None}]}
MODELS = {name: ModelShape(**{**BASE, **other}) for name, other in OTHERS.items()}
CHOICES = {
    "sequences": (12, 16),
    "tensor": (1, 2, 3, 4),
    "pipeline": (1, 2, 3),
    "data": (1, 2, 3),
    "context": (1, 2, 4),
    "micro": (1, 2),
    "schedule": range(len(SCHEDULE_NAMES)),
    "chunks": (1, 2, 3),
    "recompute": (0,),
    "recompute_every": (1,),
    "function_again": (0,),
    "sequence_parallel": (0, 1),
    "overlap_tensor": (0,),
    "zero": (1,),
    "shards": (0,),
    "expert": (1,),
}


IN_8_BITS = Precision(float8=Float8(recipe="block", block=4, keep=()))


def product(choices):
    rows = np.array(list(itertools.product(*choices.values()))).T
    return Grid(dict(zip(choices, rows, strict=True)))


@pytest.mark.broad
@pytest.mark.parametrize("name", MODELS)
def test_a_row_keeps_the_laws_exactly_when_its_plan_has_no_problem(name):
    subject = Subject(MODELS[name], 12, Precision())
    assert subject.model.problems() == []
    every = Candidates(subject, product(CHOICES))
    plans = [every.plan_at(row) for row in range(len(every))]
    expected = [plan.check(plan.layout.world_size) == [] for plan in plans]
    assert legal(subject, every.grid).tolist() == expected
    assert 0.02 < np.mean(expected) < 0.5


def test_shards_divide_replicas_and_need_something_to_shard():
    few = {name: values[:1] for name, values in CHOICES.items()}
    grid = product({**few, "data": (1, 2, 4), "context": (1, 2), "zero": (0, 1), "shards": (0, 2, 3, 4)})
    every = Candidates(Subject(MODELS["gpt"], 12, Precision()), grid)
    plans = [every.plan_at(row) for row in range(len(every))]
    expected = [plan.check(plan.layout.world_size) == [] for plan in plans]
    assert legal(every.subject, grid).tolist() == expected
    assert any(ok and plan.layout.copies > 1 for ok, plan in zip(expected, plans, strict=True))


@pytest.mark.parametrize("name", ["gpt", "experts after a dense layer"])
def test_expert_ranks_divide_experts_replicas_and_those_who_share_a_copy(name):
    few = {name: values[:1] for name, values in CHOICES.items()}
    shards = {"zero": (0, 1), "shards": (0, 2, 4), "expert": (1, 2, 3, 4, 6)}
    grid = product({**few, "data": (1, 2, 4, 6), "context": (1, 2), **shards})
    every = Candidates(Subject(MODELS[name], 12, Precision()), grid)
    plans = [every.plan_at(row) for row in range(len(every))]
    expected = [plan.check(plan.layout.world_size) == [] for plan in plans]
    assert legal(every.subject, grid).tolist() == expected
    assert (name == "gpt") == (not any(expected & (grid["expert"] > 1)))


ROWS_IN_8_BITS = Precision(weights="bf16", float8=Float8(recipe="row"))


@pytest.mark.parametrize(
    ("precision", "messages", "is_legal"),
    [
        (Precision(), {}, True),
        (Precision(weights="bf16"), {"tensor": "fp8"}, False),
        (ROWS_IN_8_BITS, {}, False),
        (IN_8_BITS, {}, True),
    ],
    ids=["exact", "encoded", "8 bits by row", "8 bits by block"],
)
def test_a_ring_needs_tensor_ranks_that_divide_positions_and_sum_exactly(precision, messages, is_legal):
    few = {name: values[:1] for name, values in CHOICES.items()}
    grid = product({**few, "tensor": (1, 2), "sequence_parallel": (0, 1), "overlap_tensor": (0, 1)})
    every = Candidates(Subject(MODELS["gpt"], 12, precision, messages=Messages(**messages)), grid)
    found = legal(every.subject, grid)
    assert found.tolist() == [not every.plan_at(row).check() for row in range(len(every))]
    in_rings = (grid["tensor"] > 1) & (grid["overlap_tensor"] > 0)
    assert found[in_rings & (grid["sequence_parallel"] > 0)].all() == is_legal
    assert not found[in_rings & (grid["sequence_parallel"] == 0)].any()


@pytest.mark.parametrize("seed", range(8))
def test_random_rows_of_random_models_are_judged_as_their_plans_are(seed):
    """Every column at once, and every field of a model that a law could read."""
    draw = np.random.default_rng(seed)
    heads = int(draw.choice([4, 6, 8, 12]))
    llama = {
        **ROTARY,
        "kv_heads": draw.choice([None, 1, 2, heads // 2, heads]),
        "head_width": draw.choice([None, 6, 10]),
        "bias": draw.choice(["qkv", "none"]),
        "qk_norm": draw.choice(["none", "each_head", "all_heads"]),
        "norm_position": draw.choice(["before", "after"]),
        "rope_scaling": draw.choice([None, {"kind": "linear", "factor": 2.0}]),
    }
    model = ModelShape(
        **{
            "layers": int(draw.integers(1, 9)),
            "hidden": 2 * heads * int(draw.integers(1, 4)),
            "heads": heads,
            "ffn": draw.choice([None, 30, 48, 50]),
            "vocabulary": 37,
            "sequence": int(draw.choice([8, 12, 24, 30])),
            "documents": draw.choice(["joined", "apart"]),
            "head": draw.choice(["tied", "untied"]),
            "dropout": draw.choice([0.0, 0.1]),
            **(llama if seed % 2 else {}),
            **({"feed_forward": "experts", "experts": {"count": 4, "chosen": 2}} if seed % 4 == 1 else {}),
        }
    )
    assert model.problems() == []
    choices = {
        **CHOICES,
        "sequences": (8, 12, 16, 24),
        "data": (1, 2, 3, 4),
        "recompute": (0, 1, 2),
        "recompute_every": (1, 2, 3),
        "function_again": (0, 1),
        "zero": (0, 1, 2, 3),
        "shards": (0, 0, 2, 4),
        "expert": (1, 1, 2, 4),
        "overlap_tensor": (0, 0, 1),
    }
    subject = Subject(model, 12, Precision() if seed % 3 else IN_8_BITS)
    every = Candidates(subject, Grid({name: draw.choice(values, 3000) for name, values in choices.items()}))
    plans = [every.plan_at(row) for row in range(len(every))]
    expected = [plan.check(plan.layout.world_size) == [] for plan in plans]
    assert legal(subject, every.grid).tolist() == expected
    assert any(expected) and not all(expected)


@pytest.mark.parametrize("name", ["heads", "kv_heads", "ffn", "experts", *(law.name for law in LAWS)])
def test_every_law_can_be_broken_and_names_the_numbers(name):
    broken = 0
    for model, law in [(m, law) for m in MODELS.values() for law in laws_of(m) if law.name == name]:
        subject = Subject(model, 12, IN_8_BITS if name == "float8" else Precision())
        grid = product({**CHOICES, "tensor": (1, 2, 5), "pipeline": (1, 2, 6), "shards": (0, 5)})
        grid = grid if law.name not in ("expert", "expert_shards", "experts") else grid.cross(expert=[2, 5])
        grid = grid if law.name != "ring" else Grid({**grid.columns, "overlap_tensor": 1 + 0 * grid["tensor"]})
        for row in np.flatnonzero(~law.keeps(subject, grid))[:3]:
            at = {column: int(grid[column][row]) for column in grid.columns}
            text = told(law, subject, at)
            assert any(str(at[column]) in text for column in law.columns)
            broken += 1
    assert broken


def test_tensor_groups_fill_nodes_without_a_rest():
    grid = product({**CHOICES, "tensor": (1, 2, 3, 4, 8, 16)})
    subject = Subject(MODELS["gpt"], 12, Precision())
    law = inside_a_node(8, ranks=64)
    assert set(grid["tensor"][law.keeps(subject, grid)].tolist()) == {1, 2, 4, 8}
    assert told(law, subject, {"tensor": 16}) == "tensor 16 spans nodes of 8"
