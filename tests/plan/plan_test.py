"""A plan lists every contradiction at once, each with path, value, law and remedy."""

import re

import numpy as np
import pytest

from plans import small
from trivium.certify.layouts import ROTARY
from trivium.config import Tree, build, merge
from trivium.errors import ConfigError
from trivium.plan.batch import Batch
from trivium.plan.layout import Axis, Coordinate, Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box, count, local_shape, parameters, shard_box
from trivium.plan.partition import Partition
from trivium.plan.plan import Plan


def broken(**changes: object) -> list[str]:
    tree = small().model_dump()
    for path, value in changes.items():
        *sections, field = path.split("__")
        node = tree
        for section in sections:
            node = node[section]
        node[field] = value
    return build(Plan, tree).check()


def test_heads_not_divisible_by_tensor_names_both_and_the_nearest_degrees() -> None:
    problems = broken(layout__tensor=3, model__heads=8, model__hidden=48)
    assert any("plan.model.heads (8)" in p and "tensor (3)" in p and "2 or 4" in p for p in problems)


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2}, {"ffn": 40}, {"sequence": 20}])
@pytest.mark.parametrize("tensor", range(1, 13))
def test_a_tensor_degree_is_legal_exactly_where_it_divides_the_plans_unit(tensor, changes) -> None:
    sizes = {"heads": 12, "hidden": 48, "ffn": 24, "sequence": 12, **changes}
    plan = small(model=sizes).model_copy(update={"sequence_parallel": "sequence" in changes})
    wider = plan.model_copy(update={"layout": Layout(tensor=tensor)})
    assert bool(wider.check()) == bool(plan.tensor_unit % tensor)


MOST = {
    "model__layers": 10_000,
    "model__hidden": 1_000_000,
    "model__heads": 1_000_000,
    "model__kv_heads": 1_000_000,
    "model__head_width": 1_000_000,
    "model__ffn": 10_000_000,
    "model__vocabulary": 100_000_000,
    "model__vocabulary_multiple": 100_000_000,
    "model__sequence": 1_000_000_000,
    "model__window": 1_000_000_000,
    "batch__sequences": 1_000_000,
    "batch__micro": 1_000_000,
    "layout__tensor": 1_000_000,
    "layout__pipeline": 1_000_000,
    "layout__data": 1_000_000,
    "layout__context": 1_000_000,
    "layout__shards": 1_000_000,
    "recompute__every": 2**63 - 1,
}


@pytest.mark.parametrize("field", MOST)
def test_a_size_above_all_that_is_built_is_refused_with_the_largest_there_may_be(field: str) -> None:
    """Counts of a larger plan would not fit into 64 bits, or take forever."""
    broken(**{field: MOST[field]})
    for value in (MOST[field] + 1, 10**23):
        with pytest.raises(ConfigError, match=f"{field.replace('__', '.')} is {value}; .* equal to {MOST[field]}$"):
            broken(**{field: value})


def test_a_layout_of_more_ranks_than_there_may_be_is_refused() -> None:
    told = broken(layout__data=2_000, layout__tensor=1_000)
    assert any("data 2000 = 2000000 ranks, and a plan has at most 1000000; lower a degree" in p for p in told)


def test_all_problems_are_listed_at_once() -> None:
    problems = broken(layout__tensor=3, layout__data=3, layout__pipeline=3, layout__chunks=2, model__heads=5)
    told = "\n".join(problems)
    for law in ("plan.model.hidden (24)", "plan.batch.sequences (16)", "plan.model.layers (4)", "plan.schedule"):
        assert law in told


def _experts(count: int) -> Tree:
    return {"model__feed_forward": "experts", "model__experts": {"count": count, "chosen": 1}}


SLOW_AND_FAST = {"kind": "yarn", "factor": 8, "original": 8, "slow": 1, "fast": 4}


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"layout__data": 3}, "nearest: 12 or 18"),
        ({"model__feed_forward": "experts", "model__bias": "none"}, "plan.model.experts is not given"),
        ({"model__attention": "latent"}, "plan.model.latent is not given"),
        ({"layout__chunks": 2, "layout__pipeline": 1}, "chunks interleave"),
        ({"layout__chunks": 2, "layout__pipeline": 2}, "plan.schedule=interleaved"),
        ({"partition__layers": (1, 2)}, "names 2 stages"),
        ({"schedule": "zb-turns", "layout__pipeline": 2}, "'zb-turns' goes down the ranks and back up"),
        (
            {"schedule": "zb-turns", "layout__pipeline": 2, "layout__chunks": 2, "partition__head_weight": 1.0},
            "plan.partition.head_weight is 1.0 but plan.schedule 'zb-turns'",
        ),
        ({"partition__layers": (3,)}, "sums to 3"),
        ({"partition__layers": (5,)}, "sums to 5"),
        ({"model__kv_heads": 3}, "multiple of plan.model.kv_heads (3)"),
        ({"model__positions": "rotary", "model__heads": 8}, "plan.model.hidden / heads (24 / 8 = 3) must be even"),
        ({"model__positions": "rotary", "model__head_width": 5}, "plan.model.head_width (5) must be even: rotary"),
        ({"layout__data": 4, "layout__shards": 3}, "must divide the 4 replicas (data 4 x context 1)"),
        ({"layout__data": 4, "layout__shards": 3}, "set it to 2 or 4 or null"),
        ({"layout__data": 4, "layout__shards": 2, "zero": 0}, "set plan.zero to 1, 2 or 3"),
        (
            {"layout__data": 4, "layout__context": 2, "layout__expert": 3, "model__bias": "none", **_experts(12)},
            "plan.layout.expert (3) must divide the 8 replicas (data 4 x context 2); set plan.layout.expert to 2 or 4",
        ),
        (
            {"layout__data": 8, "layout__shards": 2, "layout__expert": 4, "model__bias": "none", **_experts(12)},
            "plan.layout.expert (4) must divide plan.layout.shards (2), so that those who share a copy have all "
            "experts; set plan.layout.expert to 2",
        ),
        (
            {"layout__data": 2, "layout__expert": 2},
            "plan.layout.expert is 2, and no layer of the model has experts to divide; set plan.layout.expert to 1, or",
        ),
        (
            {"layout__data": 4, "layout__expert": 4, "model__bias": "none", **_experts(6)},
            "plan.model.experts.count (6) must be a multiple of plan.layout.expert (4): an expert rank holds whole "
            "experts; set plan.layout.expert to 2",
        ),
        ({"model__feed_forward": "gated"}, "plan.model.bias is 'all', and plan.model.feed_forward 'gated'"),
        (
            {"model__positions": "rotary", "model__rope_columns": 3},
            "plan.model.rope_columns (3) must be even and at most the columns of a head (6)",
        ),
        ({"model__rope_columns": 2}, "set plan.model.positions=rotary or plan.model.rope_columns=null"),
        (
            {"model__first": [{"times": 5, "window": None}]},
            "plan.model.first has 5 layers, more than plan.model.layers (4)",
        ),
        ({"model__pattern": [{}, {"heads": 5}]}, "plan.model.hidden (24) must be a multiple of plan.model.heads (5)"),
        (
            {"model__rope_base": 500.0},
            "plan.model.rope_base is 500.0, and plan.model.positions 'learned' has no rotation",
        ),
        (
            {"partition__layers": (4,), "partition__embedding_weight": 1.0},
            "plan.partition.embedding_weight is 1, and plan.partition.layers [4] says what each stage holds",
        ),
        (
            {"model__rope_scaling": {"kind": "linear", "factor": 2}},
            "plan.model.rope_scaling is of kind 'linear', and plan.model.positions 'learned' has no rotation",
        ),
        (
            {"model__positions": "rotary", "model__rope_scaling": {"kind": "llama3", "factor": 8, "attention": 1}},
            "plan.model.rope_scaling.attention is 1.0, and kind 'llama3' has none; leave it out",
        ),
        (
            {"model__positions": "rotary", "model__rope_scaling": {"kind": "yarn", "factor": 8, "slow": 1}},
            "plan.model.rope_scaling.original and .fast must be given for kind 'yarn'",
        ),
        (
            {"model__positions": "rotary", "model__rope_base": 1.0, "model__rope_scaling": SLOW_AND_FAST},
            "plan.model.rope_base (1) must be above 1 for plan.model.rope_scaling.kind 'yarn'",
        ),
        (
            {"model__positions": "rotary", "model__rope_scaling": {**SLOW_AND_FAST, "slow": 4}},
            "plan.model.rope_scaling.slow (4 turns) must be below plan.model.rope_scaling.fast (4 turns)",
        ),
        ({"model__end_of_text": 37}, "plan.model.end_of_text (37) must be one of the ids below"),
        ({"batch__ramp": {"start": 3, "increment": 5, "samples": 9}}, "never reaches"),
        (
            {"batch__ramp": {"start": 32, "increment": 16, "samples": 9}},
            "from 32 by 16 never reaches plan.batch.sequences (16)",
        ),
        (
            {"layout__data": 2, "batch__ramp": {"start": 10, "increment": 3, "samples": 9}},
            "plan.batch.ramp.increment (3) must be a multiple of plan.batch.micro x plan.layout.data",
        ),
        (
            {"layout__data": 2, "batch__ramp": {"start": 7, "increment": 9, "samples": 9}},
            "plan.batch.ramp.start (7) must be a multiple of plan.batch.micro x plan.layout.data",
        ),
        ({"sequence_parallel": True, "layout__tensor": 4, "model__sequence": 6}, "plan.model.sequence (6)"),
        (
            {"schedule": "interleaved", "layout__pipeline": 3, "batch__sequences": 16},
            "nearest plan.batch.sequences: 12 or 18",
        ),
    ],
)
def test_a_broken_law_is_named_with_its_remedy(changes: dict[str, object], law: str) -> None:
    assert law in "\n".join(broken(**changes))


SIZES = {"model__hidden": 48, "model__heads": 12, "model__kv_heads": 4, "model__ffn": 36, "model__sequence": 20}
ULYSSES = {"context_attention": "ulysses", "layout__context": 5}


@pytest.mark.parametrize(
    ("axis", "changes"),
    [
        ("tensor", {**SIZES, "layout__tensor": 5}),
        ("tensor", {**SIZES, "layout__tensor": 6, "model__sequence": 10, "sequence_parallel": True}),
        ("context", {**SIZES, **ULYSSES}),
        ("context", {**SIZES, **ULYSSES, "layout__tensor": 2}),
        ("context", {**SIZES, **ULYSSES, "layout__tensor": 2, "model__sequence": 10, "sequence_parallel": True}),
        ("expert", {"layout__data": 4, "layout__expert": 5, "model__bias": "none", **_experts(6)}),
    ],
)
def test_every_degree_that_a_remedy_of_several_lines_names_is_legal(axis: str, changes: dict[str, object]) -> None:
    lines = broken(**changes)
    named = {int(degree) for line in lines for degree in re.search(r"(\d+)(?: or (\d+))?$", line).groups() if degree}
    assert len(lines) > 1 and named
    for degree in named:
        assert not broken(**{**changes, f"layout__{axis}": degree}), degree


def test_degrees_that_do_not_multiply_to_the_processes_are_refused_with_what_would_fit() -> None:
    with pytest.raises(ConfigError, match=r"tensor 2 x pipeline 2 x data 1 = 4 ranks, but there are 8.*data=2"):
        small(tensor=2, pipeline=2).checked(8)


def layers_with_a_window(**model: object) -> list[int]:
    shape = small(model={"layers": 8, **model}).model
    windows = [layer.attention.window for layer in shape.each_layer]
    assert set(windows) <= {None, shape.window}
    return [n for n in range(8) if windows[n] is not None]


def test_the_layers_of_known_models_have_their_windows() -> None:
    """Mistral 7B v0.1; Qwen2; Gemma-2 and gpt-oss; Gemma-3 (here every third); Ministral, which begins with one that
    sees all; and a window as long as a sequence, which hides nothing."""
    every_third: list[object] = [{"times": 2}, {"window": None}]
    every_fourth: list[object] = [{"times": 3}, {"window": None}]
    assert layers_with_a_window(window=3) == list(range(8))
    assert layers_with_a_window(window=3, first=[{"times": 6, "window": None}]) == [6, 7]
    assert layers_with_a_window(window=3, pattern=[{}, {"window": None}]) == [0, 2, 4, 6]
    assert layers_with_a_window(window=3, pattern=every_third) == [0, 1, 3, 4, 6, 7]
    assert layers_with_a_window(window=3, first=[{"window": None}], pattern=every_fourth) == [1, 2, 3, 5, 6, 7]
    assert layers_with_a_window(window=8) == []


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"times": 0}, "times is 0"),
        ({"windw": 3}, "'windw' is no setting in which layers may differ; did you mean 'window'"),
        ({"heads": 2.5}, "heads is 2.5: Input should be a valid integer"),
    ],
)
def test_a_wrong_run_of_layers_is_refused_with_its_field(run: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        build(Plan, merge(small().model_dump(), {"model": {"pattern": [run]}}))


def test_layers_may_differ_in_heads_and_columns() -> None:
    """The parameters of each layer are those of its own settings, and a plan survives being written and read."""
    model = {"pattern": [{}, {"heads": 2, "head_width": 6, "ffn": 40}], "layers": 3}
    plan = small(model=model)
    rows = {p.name: p.shape for p in parameters(plan.model)}
    assert rows["layers.0.attention.qkv.weight"] == rows["layers.2.attention.qkv.weight"] == (3 * 24, 24)
    assert rows["layers.1.attention.qkv.weight"] == (3 * 12, 24) and rows["layers.1.mlp.up.weight"] == (40, 24)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_vocabulary_is_padded_not_refused() -> None:
    model = ModelShape(layers=1, hidden=8, heads=2, vocabulary=50257, sequence=8)
    assert model.padded_vocabulary(8) == 51200  # as Megatron pads GPT-2's
    assert model.padded_vocabulary(1) == 50304


def test_mt_nlg_has_the_papers_parameters_and_its_batch_ramp_the_papers_steps() -> None:
    model = ModelShape(layers=105, hidden=20480, heads=128, vocabulary=51200, sequence=2048)
    L, h, V, s = 105, 20480, 51200, 2048
    assert count(model) == 12 * L * h * h + 13 * L * h + (V + s) * h + 2 * h
    assert model.std == pytest.approx(4.0344e-3, rel=1e-4)  # sqrt(1 / 3h), section 3.2
    batch = Batch(sequences=1920, micro=1, ramp={"start": 32, "increment": 32, "samples": 5859375})
    assert batch.segments[-1].sequences == 1920
    assert 5859375 <= batch.segments[-1].first_sample < 5859375 + 1920


def test_no_sample_is_skipped_or_repeated_over_the_whole_ramp_of_the_paper() -> None:
    batch = Batch(sequences=1920, micro=1, ramp={"start": 32, "increment": 32, "samples": 5859375})
    expected, seen = 0, set()
    for step in range(batch.segments[-1].first_step + 3):
        at = batch.at(step) if step % 97 == 0 else None
        if at is not None:
            assert at.first_sample == expected
        size = max(s for s in batch.segments if s.first_step <= step).sequences
        seen.add(size)
        expected += size
    assert seen == set(range(32, 1921, 32))


def test_steps_for_inverts_the_samples_of_a_step() -> None:
    batch = Batch(sequences=48, micro=1, ramp={"start": 16, "increment": 16, "samples": 100})
    for step in range(40):
        assert batch.steps_for(batch.at(step).first_sample) == step


@pytest.mark.parametrize("samples", [1, 7, 40, 100, 101])
@pytest.mark.parametrize(("start", "increment", "full"), [(2, 2, 12), (3, 1, 4), (4, 12, 40), (8, 4, 8)])
def test_a_ramp_has_the_batches_of_megatron_lm(start: int, increment: int, full: int, samples: int) -> None:
    """There a batch follows from the samples before it alone; a short ramp leaves sizes out."""
    batch = Batch(sequences=full, ramp={"start": start, "increment": increment, "samples": samples})
    assert batch.problems(Layout()) == []
    rises, before = (full - start) // increment, 0
    for step in range(60):
        size = full if before >= samples else start + increment * (before * rises // samples)
        assert batch.at(step) == (before, size)
        assert [batch.steps_for(n) for n in range(before + 1, before + size + 1)] == [step + 1] * size
        before += size


def test_ranks_and_coordinates_are_inverse_and_tensor_groups_are_consecutive() -> None:
    layout = Layout(tensor=4, pipeline=3, data=2)
    assert [layout.rank(layout.coordinate(r)) for r in range(24)] == list(range(24))
    assert layout.peers(5, "tensor") == (4, 5, 6, 7)
    assert layout.coordinate(5) == Coordinate(pipeline=0, data=1, tensor=1)
    other = Layout(tensor=2, pipeline=2, data=2, order=("data", "pipeline", "tensor"))
    assert other.peers(0, "pipeline") == (0, 2)
    assert [other.rank(other.coordinate(r)) for r in range(8)] == list(range(8))


@pytest.mark.parametrize(
    "order", [("pipeline", "data", "context", "tensor"), ("context", "tensor", "data", "pipeline")]
)
def test_sharers_and_holders_are_the_rows_and_columns_of_the_replicas(order: tuple[Axis, ...]) -> None:
    layout = Layout(tensor=2, pipeline=2, data=4, context=2, shards=4, order=order)
    rows, columns = layout.sharer_sets(), layout.holder_sets()
    for sets, size in ((rows, 4), (columns, 2)):
        assert sorted(rank for peers in sets for rank in peers) == list(range(32))
        assert {len(peers) for peers in sets} == {size}
    for peers in (*rows, *columns):
        assert len({(at.pipeline, at.tensor) for at in map(layout.coordinate, peers)}) == 1
    for row in rows:
        assert all(len(set(row) & set(column)) in (0, 1) for column in columns)
    assert len(layout.peer_sets("data", "context")) == 4
    assert Layout(data=4, context=2).sharers == 8 and Layout(data=4, context=2).copies == 1


@pytest.mark.parametrize("order", [("data", "context", "tensor"), ("context", "tensor", "data")])
def test_expert_ranks_are_neighbouring_replicas_and_share_copies_like_them(order: tuple[Axis, ...]) -> None:
    layout = Layout(tensor=2, data=4, context=2, shards=4, expert=2, order=order)
    sets = layout.expert_sets(), layout.expert_replica_sets(), layout.expert_sharer_sets()
    for found, size in zip(sets, (2, layout.expert_replicas, layout.expert_sharers), strict=True):
        assert sorted(rank for peers in found for rank in peers) == list(range(16))
        assert {len(peers) for peers in found} == {size}
    for peers in (peers for found in sets for peers in found):
        assert len({layout.coordinate(rank).tensor for rank in peers}) == 1
        assert list(peers) == sorted(peers)
    of = [{rank: peers for peers in found for rank in peers} for found in (*sets, layout.holder_sets())]
    for rank in range(16):
        at = layout.coordinate(rank)
        expert, replicas, sharers, holders = (peers_of[rank] for peers_of in of)
        assert expert[layout.expert_rank(at)] == rank == sharers[layout.expert_sharer(at)]
        assert {layout.expert_rank(layout.coordinate(peer)) for peer in replicas} == {layout.expert_rank(at)}
        # Ranks with the same slice of experts are those with the same slice of everything else.
        assert set(replicas) >= set(sharers) and set(replicas) >= set(holders)
        assert set(sharers) & set(holders) == {rank} and len(sharers) * len(holders) == len(replicas)


def test_an_order_names_each_axis_once_and_none_that_has_ranks_is_left_out() -> None:
    for order in (("pipeline", "tensor"), ("data", "data", "tensor")):
        (problem,) = Layout(tensor=2, data=2, order=order).problems()
        assert "must name each axis once" in problem
    assert Layout(tensor=2, data=2, order=("data", "tensor")).problems() == []


def test_partitions_cover_the_model_once_and_weigh_the_ends() -> None:
    model = ModelShape(layers=10, hidden=8, heads=2, vocabulary=8, sequence=8)
    for pipeline in range(1, 11):
        ranges = Partition().ranges(model, Layout(pipeline=pipeline))
        assert [n for r in ranges for n in r] == list(range(10))
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    deep = model.model_copy(update={"layers": 105})  # the paper's, and more than any period
    for pipeline, chunks in ((1, 1), (7, 3), (13, 1), (35, 1), (35, 3), (105, 1)):
        counts = Partition().counts(deep, Layout(pipeline=pipeline, chunks=chunks))
        assert sum(counts) == 105 and set(counts) <= {105 // (pipeline * chunks), -(-105 // (pipeline * chunks))}
        ranges = Partition().ranges(deep, Layout(pipeline=pipeline, chunks=chunks))
        assert [n for r in ranges for n in r] == list(range(105))
    weighted = Partition(head_weight=2, embedding_weight=1).counts(model, Layout(pipeline=4))
    assert weighted[-1] < weighted[1] and sum(weighted) == 10
    assert Partition(head_weight=4).counts(model, Layout(pipeline=4)) == (3, 4, 3, 0)
    assert Partition(embedding_weight=4).counts(model, Layout(pipeline=4)) == (0, 4, 3, 3)


def test_layers_that_are_given_are_the_stages() -> None:
    model, layout, given = (
        ModelShape(layers=10, hidden=8, heads=2, vocabulary=8, sequence=8),
        Layout(pipeline=4),
        (1, 0, 4, 5),
    )
    assert Partition(layers=given).problems(model, layout) == []
    assert Partition(layers=given).counts(model, layout) == given
    assert Partition(layers=given).ranges(model, layout) == (range(1), range(1, 1), range(1, 5), range(5, 10))


def test_a_feed_forward_is_four_times_as_wide_or_with_a_gate_8_thirds_rounded_up_to_64() -> None:
    for hidden, gpt, llama in ((24, 96, 64), (4096, 16384, 10944), (5120, 20480, 13696), (6144, 24576, 16384)):
        widths = [small(model={**style, "hidden": hidden}).model.ffn_width for style in ({}, ROTARY)]
        assert widths == [gpt, llama]


def test_the_width_of_heads_is_a_share_of_hidden_only_where_none_is_given() -> None:
    assert broken(model__heads=5) and not broken(model__heads=5, model__head_width=6)
    assert (small().model.head_columns, small(model={"head_width": 10}).model.head_columns) == (6, 10)


MISTRAL_7B = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocabulary": 32000}
QWEN25_05B = {"layers": 24, "hidden": 896, "heads": 14, "kv_heads": 2, "ffn": 4864, "vocabulary": 151936}
QWEN25_7B = {"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "ffn": 18944, "vocabulary": 152064}
QWEN3_06B = {"layers": 28, "hidden": 1024, "heads": 16, "kv_heads": 8, "ffn": 3072, "vocabulary": 151936}
OLMO2_1B = {"layers": 16, "hidden": 2048, "heads": 16, "ffn": 8192, "vocabulary": 100352}
QWEN3_8B = {"layers": 36, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 12288, "vocabulary": 151936}


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ({**MISTRAL_7B, "head": "untied"}, 7_241_732_096),
        ({**QWEN25_05B, "bias": "qkv"}, 494_032_768),
        ({**QWEN25_7B, "bias": "qkv", "head": "untied"}, 7_615_616_512),
        ({**QWEN3_06B, "qk_norm": "each_head", "head_width": 128}, 596_049_920),
        ({**OLMO2_1B, "qk_norm": "all_heads", "head": "untied"}, 1_484_916_736),
        ({**QWEN3_8B, "qk_norm": "each_head", "head_width": 128, "head": "untied"}, 8_190_735_360),
    ],
)
def test_published_models_have_the_parameters_that_their_folders_hold(model: dict[str, object], published: int) -> None:
    assert count(ModelShape(**{**ROTARY, **model}, sequence=4096)) == published


EVERY_LLAMA = {"bias": "qkv", "qk_norm": "each_head", "head_width": 12}


OF_EXPERTS = {"feed_forward": "experts", "experts": {"count": 8, "chosen": 2, "shared": 4, "bias_rate": 0.1}}
OLMO2 = {"qk_norm": "all_heads", "norm_position": "after"}


@pytest.mark.parametrize(
    ("family", "settings"),
    [("gpt", {}), ("llama", {}), ("llama", EVERY_LLAMA), ("llama", OLMO2), ("llama", OF_EXPERTS)],
)
@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("expert", [1, 4])
def test_shards_of_every_parameter_cover_it_exactly_once(
    family: str, settings: dict[str, object], tensor: int, expert: int
) -> None:
    model = ModelShape(
        **{**{"gpt": {}, "llama": ROTARY}[family], **settings},
        layers=2,
        hidden=32,
        heads=4,
        vocabulary=37,
        vocabulary_multiple=4,
        sequence=8,
        head="untied",
    )
    layout = Layout(tensor=tensor, data=expert, expert=expert)
    for p in parameters(model):
        boxes = [shard_box(p, model, layout, t, e) for t in range(tensor) for e in range(expert)]
        assert all(all(n <= m for n, m in zip(b.shape, local_shape(p, model, layout))) for b in boxes)
        copies = np.zeros(p.shape, dtype=int)
        for box in boxes:
            copies[box.within(Box((0,) * len(p.shape), p.shape))] += 1
        every = (1 if p.split is not None else tensor) * (1 if p.by_expert else expert)
        assert (copies == every).all(), p.name


def test_a_copy_with_another_batch_has_its_own_ramp_table() -> None:
    batch = Batch(sequences=48, micro=1, ramp={"start": 16, "increment": 16, "samples": 100})
    assert batch.segments[-1].sequences == 48
    assert batch.model_copy(update={"sequences": 32}).segments[-1].sequences == 32
