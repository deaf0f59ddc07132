import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.errors import ConfigError
from trivium.plan.layout import AXES, Layout
from trivium.plan.mapping import crossings, describe, draw, legend, node_of, problems

MT_NLG = Layout(tensor=8, pipeline=35, data=8)
DGX = 8  # devices
INNER = [axis for axis in AXES if axis != "tensor"]

small_layouts = st.builds(
    Layout,
    tensor=st.integers(1, 5),
    pipeline=st.integers(1, 4),
    data=st.integers(1, 4),
    **({"context": st.integers(1, 3)} if "context" in AXES else {}),
    order=st.permutations(AXES).map(tuple),
)


def test_tensor_groups_of_mt_nlg_stay_inside_a_node_and_the_others_cross():
    found = crossings(MT_NLG, DGX)
    assert found["tensor"] == (280, 0, 1)
    assert found["data"] == (280, 280, 8)
    assert found["pipeline"] == (64, 64, 35)
    assert problems(MT_NLG, DGX) == []


def test_another_order_spans_tensor_groups_and_is_refused_with_the_order_that_would_fit():
    other = MT_NLG.model_copy(update={"order": ("tensor", *INNER)})
    assert crossings(other, DGX)["tensor"].spanning == 280
    (text,) = problems(other, DGX)
    assert "280 of 280 tensor groups of 8" in text
    assert f"plan.layout.order=[{','.join([*INNER, 'tensor'])}]" in text and "--allow-tensor-across-nodes" in text


def test_what_the_user_allows_is_not_refused():
    wide = Layout(tensor=16)
    assert problems(wide, DGX) and problems(wide, DGX, tensor_across_nodes=True) == []
    (text,) = problems(Layout(tensor=16, chunks=2), DGX, tensor_across_nodes=True)
    assert "plan.layout.chunks is 2" in text  # what is no layout is none across nodes either


@pytest.mark.parametrize(("tensor", "remedy"), [(16, "tensor to 8,"), (3, "tensor to 2 or 4,"), (6, "4 or 8,")])
def test_a_degree_that_does_not_divide_a_node_is_refused_with_the_nearest_that_do(tensor, remedy):
    (text,) = problems(Layout(tensor=tensor, pipeline=8), DGX)
    assert remedy in text


def test_the_degree_that_is_named_is_one_that_the_model_can_be_split_into():
    (text,) = problems(Layout(tensor=2, data=4), 3, tensor_unit=8)
    assert "tensor to 1, which" in text


@given(small_layouts, st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_every_rank_is_drawn_exactly_once_and_on_its_node(layout, per_node):
    """Each coordinate of the layout appears once; the n-th line holds the ranks of node n."""
    lines = draw(layout, per_node)
    assert len(lines) == node_of(layout.world_size - 1, per_node) + 1
    axes = [a for a in layout.order if layout.degree(a) > 1] or list(layout.order)
    pattern = re.compile(" *".join(rf"{a[0]}(\d+)" for a in axes))
    for node, line in enumerate(lines):
        cells = line.split("rank", 1)[1]
        found = [tuple(map(int, match.groups())) for match in pattern.finditer(cells)]
        ranks = range(node * per_node, min((node + 1) * per_node, layout.world_size))
        assert found == [tuple(getattr(layout.coordinate(r), a) for a in axes) for r in ranks]


@given(small_layouts, st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_a_group_spans_nodes_exactly_when_two_of_its_ranks_sit_on_different_ones(layout, per_node):
    for axis, crossing in crossings(layout, per_node).items():
        groups = {layout.peers(rank, axis) for rank in range(layout.world_size)}
        nodes = [len({rank // per_node for rank in group}) for group in groups]
        assert crossing == (len(groups), sum(n > 1 for n in nodes), max(nodes))


@given(small_layouts, st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_what_is_not_refused_keeps_every_tensor_group_inside_a_node(layout, per_node):
    assert bool(problems(layout, per_node)) == (crossings(layout, per_node)["tensor"].spanning > 0)


def test_an_axis_of_degree_one_may_be_left_out_of_the_order():
    layout = Layout(pipeline=2, data=2, order=("data", "pipeline"))
    assert problems(layout, 2) == [] and crossings(layout, 2)["tensor"] == (4, 0, 1)


def test_one_huge_node_crosses_nothing():
    assert all(c.spanning == 0 for c in crossings(MT_NLG, MT_NLG.world_size).values())


def test_a_part_of_the_nodes_can_be_drawn():
    assert draw(MT_NLG, DGX, nodes=[1, 279]) == [draw(MT_NLG, DGX)[1], draw(MT_NLG, DGX)[279]]


def test_the_words_say_which_axes_cross():
    assert describe(MT_NLG, DGX) == [
        "pipeline  64 groups of 35: each spans up to 35 nodes",
        "data      280 groups of 8: each spans up to 8 nodes",
        "tensor    280 groups of 8: inside a node",
    ]
    assert legend(MT_NLG) == "p pipeline, d data, t tensor"


@pytest.mark.parametrize("per_node", [0, -8])
def test_a_node_without_devices_is_refused(per_node):
    with pytest.raises(ConfigError, match=str(per_node)):
        node_of(3, per_node)
