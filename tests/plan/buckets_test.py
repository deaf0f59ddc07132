"""Buckets hold every parameter once, and are closed at their limit."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import EXPERTS, small
from trivium.plan.buckets import (
    ALIGNMENT_ELEMENTS,
    BUCKET_ELEMENTS,
    LONE_BUCKET_ELEMENTS,
    bucket_table,
    held,
    in_buckets,
    partial_over,
    slices_of,
)
from trivium.plan.parameters import TOKENS


@given(st.lists(st.integers(1, 2 * LONE_BUCKET_ELEMENTS), max_size=20))
def test_alone_a_large_parameter_has_its_own_bucket_and_small_ones_share(sizes: list[int]) -> None:
    buckets = list(in_buckets(sizes, int, 1))
    assert sorted(n for bucket in buckets for n in bucket) == sorted(sizes)
    shared = [bucket for bucket in buckets if max(bucket) < LONE_BUCKET_ELEMENTS]
    assert len(buckets) - len(shared) == sum(n >= LONE_BUCKET_ELEMENTS for n in sizes)
    assert all(len(bucket) == 1 for bucket in buckets if bucket not in shared)
    assert all(sum(bucket) >= LONE_BUCKET_ELEMENTS for bucket in shared[:-1])
    assert all(sum(bucket[:-1]) < LONE_BUCKET_ELEMENTS for bucket in shared)


@given(st.lists(st.integers(1, 2 * BUCKET_ELEMENTS), max_size=20), st.integers(2, 8))
def test_among_replicas_buckets_are_runs_closed_once_they_are_full(sizes: list[int], replicas: int) -> None:
    buckets = list(in_buckets(sizes, int, replicas))
    assert [n for bucket in buckets for n in bucket] == sizes
    assert all(sum(bucket) >= BUCKET_ELEMENTS for bucket in buckets[:-1])
    assert all(sum(bucket[:-1]) < BUCKET_ELEMENTS for bucket in buckets)


@pytest.mark.parametrize("replicas", (1, 2))
def test_each_item_is_measured_once_however_many_share_a_bucket(replicas: int) -> None:
    asked: list[int] = []
    list(in_buckets(range(1000), lambda item: asked.append(item) or 1, replicas))
    assert asked == list(range(1000))


@pytest.mark.parametrize("replicas", (1, 2))
def test_every_parameter_is_in_one_bucket(replicas: int) -> None:
    plan = small(data=replicas, model={"hidden": 512, "heads": 8})
    named = [(i.parameter.name, i.stage) for row in bucket_table(plan, 0) for i in row.items]
    assert sorted(named) == sorted((i.parameter.name, i.stage) for i in held(plan, 0))
    alone = [len(row.items) for row in bucket_table(plan, 0) if row.padded >= LONE_BUCKET_ELEMENTS]
    assert alone and (set(alone) == {1}) is (replicas == 1)


def test_a_tied_table_is_summed_over_the_ends_where_two_ranks_hold_it_and_the_last_ones_is_the_copy() -> None:
    for pipeline, over in ((1, ()), (2, ("ends",)), (4, ("ends",))):
        plan = small(pipeline=pipeline, model={"head": "tied"})
        tables = [(rank, i) for rank in range(pipeline) for i in held(plan, rank) if i.parameter.name == TOKENS]
        assert [(rank, item.borrowed) for rank, item in tables] == [(0, False), (pipeline - 1, True)][
            : min(pipeline, 2)
        ]
        assert {partial_over(plan, item.parameter) for _, item in tables} == {over}
    untied = small(pipeline=2, model={"head": "untied"})
    assert not any(partial_over(untied, i.parameter) or i.borrowed for rank in (0, 1) for i in held(untied, rank))


def test_at_stage_3_a_bucket_is_of_one_module() -> None:
    plan = small(data=2, zero=3)
    assert all(len({i.parameter.owner for i in row.items}) == 1 for row in bucket_table(plan, 0))
    together = bucket_table(small(data=2, zero=1), 0)
    assert len(together) < len(bucket_table(plan, 0))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(("degrees", "slices"), [({}, 4), ({"shards": 4}, 2), ({"shards": 2}, 1)])
def test_experts_have_buckets_that_ranks_with_the_same_experts_slice(zero: int, degrees: dict, slices: int) -> None:
    if zero == 0 and degrees:
        return
    plan = small(data=4, context=2, expert=2, zero=zero, model=EXPERTS, **degrees)
    rows = bucket_table(plan, 0)
    for row in rows:
        assert {item.parameter.by_expert for item in row.items} == {row.by_expert}
        mine = slices_of(plan, row)
        assert mine == (1 if zero == 0 else slices if row.by_expert else plan.layout.sharers)
        assert row.padded % (mine * ALIGNMENT_ELEMENTS) == 0
        if row.by_expert:
            assert all(item.elements == item.parameter.elements // 2 for item in row.items)
    assert {row.by_expert for row in rows} == {False, True}
    alone = small(data=4, context=2, zero=zero, model=EXPERTS)
    assert not any(row.by_expert for row in bucket_table(alone, 0)), "all ranks hold all experts"


@pytest.mark.parametrize(("tensor", "parallel"), [(1, False), (2, False), (2, True)])
def test_where_tensor_ranks_share_positions_what_all_hold_is_summed_over_them(tensor: int, parallel: bool) -> None:
    plan = small(tensor=tensor, sequence_parallel=parallel)
    for item in held(plan, 0):
        whole = item.elements == prod(item.parameter.shape)
        assert partial_over(plan, item.parameter) == (("tensor",) if parallel and whole else ())
