import math
from dataclasses import replace

import numpy as np
import pytest

from cost.plans import mt_nlg, small
from trivium.certify.layouts import ROTARY
from trivium.cost.bucket_sizes import bucket_limit, bucket_sizes, slice_elements
from trivium.cost.case import case_of
from trivium.cost.rank_parameters import layer_parameters
from trivium.plan.buckets import BUCKET_ELEMENTS, UNIT, bucket_elements, bucket_table, padded
from trivium.plan.parameters import TOKENS, local_shape, stage_parameters

LAYOUTS = [
    {"layout": {"tensor": 1, "pipeline": 1, "data": 3}, "batch": {"sequences": 24}},
    {"layout": {"tensor": 2, "pipeline": 2, "data": 2}},
    {"layout": {"tensor": 4, "pipeline": 3, "data": 1}},
    {"layout": {"tensor": 1, "pipeline": 1, "data": 4}, "zero": 2},
    {"layout": {"tensor": 1, "pipeline": 1, "data": 4}, "zero": 3},
    {"layout": {"tensor": 1, "pipeline": 2, "data": 1, "chunks": 2}, "schedule": "interleaved"},
    {"layout": {"pipeline": 4, "chunks": 2}, "sequence_parallel": True, "schedule": "interleaved"},
    {"model": {**ROTARY, "kv_heads": 2, "head": "untied"}, "layout": {"tensor": 2, "pipeline": 4}},
    {"model": {**ROTARY, "kv_heads": 2, "bias": "qkv", "qk_norm": "each_head"}, "layout": {"tensor": 2}},
    {"model": {"first": [{"times": 2, "heads": 2, "head_width": 16, "ffn": 96}]}, "layout": {"tensor": 2}},
    {"model": {**ROTARY, "head_width": 24, "qk_norm": "each_head"}, "sequence_parallel": True},
    {"model": {**ROTARY, "kv_heads": 4, "qk_norm": "all_heads"}, "layout": {"tensor": 4}},
    {"layout": {"chunks": 2}, "schedule": "zb-v"},
    {"layout": {"chunks": 2}, "schedule": "zb-v", "model": {"head": "untied"}},
    {"layout": {"chunks": 2}, "schedule": "zb-turns"},
    {"layout": {"chunks": 2}, "schedule": "zb-turns", "model": {"head": "untied"}},
]  # fmt: skip


def table_elements(plan, pipeline):
    """Straight from the table of parameters, layer by layer."""
    total, stages = 0, plan.stages_of(pipeline)
    for stage in stages:
        last = stage == plan.last_stage
        for p in stage_parameters(plan.model, plan.layers_of(stage), first=stage == 0, last=last):
            borrowed = p.name == TOKENS and stage != 0 and 0 in stages  # one table for both ends
            total += 0 if borrowed else math.prod(local_shape(p, plan.model, plan.layout))
    return total


@pytest.mark.parametrize("over", LAYOUTS)
def test_buckets_hold_the_table_of_parameters_and_less_padding_than_a_unit_for_each_data_rank(over):
    plan = small(**over)
    for pipeline in range(plan.layout.pipeline):
        sizes, exact = bucket_sizes(plan, pipeline), table_elements(plan, pipeline)
        unit = plan.layout.data * UNIT
        assert all(size % unit == 0 for size in sizes)
        assert exact <= sum(sizes) <= exact + len(sizes) * (unit - 1)


@pytest.mark.parametrize("over", LAYOUTS)
def test_buckets_are_those_of_the_runtimes_table(over):
    plan = small(**over)
    for pipeline in range(plan.layout.pipeline):
        table = tuple(row.padded for row in bucket_table(plan, pipeline))
        assert sorted(bucket_sizes(plan, pipeline)) == sorted(table)


def test_without_data_ranks_nothing_is_padded():
    plan = small(layout={"data": 1})
    assert [sum(bucket_sizes(plan, p)) for p in (0, 1)] == [table_elements(plan, p) for p in (0, 1)]


def test_parameters_treated_differently_never_share_a_bucket():
    """Tied to the other end of the pipeline or not; and under sequence parallelism summed over tensor."""
    assert len(bucket_sizes(small(layout={"pipeline": 1}), 0)) == 2
    assert len(bucket_sizes(small(), 0)) == 2
    assert len(bucket_sizes(small(sequence_parallel=True), 0)) == 3


def test_a_large_model_has_many_buckets_and_only_the_last_of_a_kind_may_be_small():
    sizes = bucket_sizes(mt_nlg(), 1)
    assert sum(size < BUCKET_ELEMENTS for size in sizes) <= 2


def test_among_many_sharers_buckets_are_larger_up_to_a_limit():
    sharers = np.array([1, 2, 7, 8, 15, 16, 63, 64, 65, 512, 4096])
    limits = [bucket_elements(int(n)) for n in sharers]
    assert limits == sorted(limits) and limits[1] == limits[4] < limits[5] < limits[7] == limits[-1]
    case = case_of(small())
    assert bucket_limit(replace(case, data=sharers, context=1, shards=sharers)).tolist() == limits


def test_a_slice_is_a_sharers_part_of_the_padded_bucket_and_without_zero_the_bucket():
    sharers, elements = np.arange(1, 14), np.array([[1], [8], [103], [BUCKET_ELEMENTS]])
    case = replace(case_of(small()), data=sharers, context=1)
    expected = [[padded(int(e), int(n)) // n for n in sharers] for (e,) in elements]
    assert slice_elements(replace(case, zero=1), elements).tolist() == expected
    whole = [[padded(int(e))] * len(sharers) for (e,) in elements]
    assert slice_elements(replace(case, zero=0), elements).tolist() == whole


def test_a_large_models_buckets_hold_all_of_it():
    sizes = bucket_sizes(mt_nlg(), 1)
    assert sum(sizes) == pytest.approx(3 * layer_parameters(case_of(mt_nlg())), abs=len(sizes) * 8)
