"""Buckets hold every parameter once, and are closed at their limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import small
from trivium.plan.buckets import BUCKET_ELEMENTS, ELEMENTS_ALONE, bucket_table, held, in_buckets


@given(st.lists(st.integers(1, 2 * ELEMENTS_ALONE), max_size=20))
def test_alone_a_large_parameter_has_its_own_bucket_and_small_ones_share(sizes: list[int]) -> None:
    buckets = list(in_buckets(sizes, int, 1))
    assert sorted(n for bucket in buckets for n in bucket) == sorted(sizes)
    shared = [bucket for bucket in buckets if max(bucket) < ELEMENTS_ALONE]
    assert len(buckets) - len(shared) == sum(n >= ELEMENTS_ALONE for n in sizes)
    assert all(len(bucket) == 1 for bucket in buckets if bucket not in shared)
    assert all(sum(bucket) >= ELEMENTS_ALONE for bucket in shared[:-1])
    assert all(sum(bucket[:-1]) < ELEMENTS_ALONE for bucket in shared)


@given(st.lists(st.integers(1, 2 * BUCKET_ELEMENTS), max_size=20), st.integers(2, 8))
def test_among_replicas_buckets_are_runs_closed_once_they_are_full(sizes: list[int], replicas: int) -> None:
    buckets = list(in_buckets(sizes, int, replicas))
    assert [n for bucket in buckets for n in bucket] == sizes
    assert all(sum(bucket) >= BUCKET_ELEMENTS for bucket in buckets[:-1])
    assert all(sum(bucket[:-1]) < BUCKET_ELEMENTS for bucket in buckets)


@pytest.mark.parametrize("replicas", (1, 2))
def test_each_item_is_measured_once_however_many_share_a_bucket(replicas: int) -> None:
    asked: list[int] = []
    list(in_buckets(range(1000), lambda item: asked.append(item) or 1, replicas))  # type: ignore[func-returns-value]
    assert asked == list(range(1000))


@pytest.mark.parametrize("replicas", (1, 2))
def test_every_parameter_is_in_one_bucket(replicas: int) -> None:
    plan = small(data=replicas, model={"hidden": 512, "heads": 8})
    named = [(i.parameter.name, i.stage) for row in bucket_table(plan, 0) for i in row.items]
    assert sorted(named) == sorted((i.parameter.name, i.stage) for i in held(plan, 0))
    alone = [len(row.items) for row in bucket_table(plan, 0) if row.padded >= ELEMENTS_ALONE]
    assert alone and (set(alone) == {1}) is (replicas == 1)
