"""What replicas sum and the update, beside the plan's own tables."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from cost.plans import mt_nlg, small
from trivium.cost.bucket_sizes import bucket_sizes
from trivium.cost.case import case_of
from trivium.cost.collectives import default_strides, ranks_in_node
from trivium.cost.constants import prior_constants
from trivium.cost.estimate import Durations, strides_of
from trivium.cost.hardware import machine_named
from trivium.cost.moments import moments_of_rank
from trivium.cost.replicas import data_seconds, fullest_of, fullest_of_plan
from trivium.cost.stack import stack_named
from trivium.cost.stages import layers_by_stage, layers_of_ranks
from trivium.cost.step_time import step_seconds
from trivium.cost.traffic import step_traffic
from trivium.plan.layout import AXES, Coordinate, Layout

SELENE = machine_named("selene")
OURS = stack_named("trivium")
CASE = case_of(small())
SCHEDULES = [("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-v", 2)]


def several(layers: int, pipeline: int, schedule: str, chunks: int, **over):
    layout = {"tensor": 1, "pipeline": pipeline, "chunks": chunks, "data": 2}
    return small(
        model={"layers": layers, **over},
        layout=layout,
        schedule=schedule,
        batch={"sequences": 4 * pipeline, "micro": 1},
    )


@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_the_fullest_rank_of_a_balanced_plan_is_the_one_whose_buffers_are_largest(schedule, chunks, head):
    for pipeline in (2, 3, 4):
        for layers in range(pipeline * chunks, pipeline * chunks + 5):
            plan = several(layers, pipeline, schedule, chunks, head=head, vocabulary=4000)
            found, exact = fullest_of(case_of(plan)), fullest_of_plan(plan)
            assert float(found.elements) == pytest.approx(exact.elements, rel=1e-3)  # padding
            assert found.layers == exact.layers


@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_layers_of_first_middle_and_last_rank_are_the_partitions(schedule, chunks):
    for pipeline in (2, 3, 5):
        for layers in range(pipeline * chunks, pipeline * chunks + 7):
            plan = several(layers, pipeline, schedule, chunks)
            every = layers_by_stage(plan)
            held = [sum(len(every[s]) for s in plan.stages_of(rank)) for rank in range(pipeline)]
            first, most, last = layers_of_ranks(case_of(plan))
            assert (first, last) == (held[0], held[-1])
            assert max(held[1:-1], default=0) <= most <= max(held)


def test_a_partition_of_ones_own_is_priced_as_it_is():
    layers = {"partition": {"layers": [1, 1, 1, 5]}, "layout": {"pipeline": 4, "tensor": 1}}
    plan = small(**layers)
    held = [moments_of_rank(plan, rank)[0].layers for rank in range(4)]
    assert held == [1, 1, 1, 5] and fullest_of_plan(plan).layers == 1
    assert fullest_of_plan(plan).elements == sum(bucket_sizes(plan, 3))


def ends_bytes(plan) -> float:
    """What is priced for the two uses of a tied table, over a road without latency."""
    free = {"start_seconds": 0.0, "latency_seconds": 0.0}
    link = SELENE.fabric_link
    machine = SELENE.model_copy(update={"fabric_link": link.model_copy(update=free)})

    def seconds(of):
        durations = Durations(of, machine, OURS)
        return float(data_seconds(durations.at, durations.kept, fullest_of_plan(plan)))

    untied = plan.model_copy(update={"model": plan.model.model_copy(update={"head": "untied"})})
    at = Durations(plan, machine, OURS).at
    return (seconds(plan) - seconds(untied)) * float(
        at.road_to(plan.layout.pipeline, at.strides.pipeline).bandwidth
    )


@pytest.mark.parametrize("zero", [0, 1])
def test_a_tied_table_is_summed_over_the_ends_as_the_traffic_counts_it(zero):
    plan = mt_nlg(zero=zero)
    counted = step_traffic(plan, Coordinate(0, 0, 0))["ends"]["all_reduce"]
    # The buckets of a tied table have a start of their own, some microseconds.
    assert ends_bytes(plan) == pytest.approx(counted, rel=0.1, abs=4e6)


def test_where_both_ends_are_on_one_rank_a_tied_table_is_summed_there():
    plan = mt_nlg(
        model={"layers": 70}, layout={"pipeline": 35, "chunks": 2}, schedule="zb-v", batch={"sequences": 1920}
    )
    assert not plan.ends_apart and not step_traffic(plan, Coordinate(0, 0, 0))["ends"]
    assert ends_bytes(plan) == pytest.approx(0, abs=4e6)


@pytest.mark.parametrize("shards", [None, 2, 4])
def test_stage_3_reduces_the_table_too(shards):
    """Over the slowest of fabrics traffic is all there is; then twice the table is twice its gathers and reductions."""
    link = SELENE.fabric_link.model_copy(
        update={"bandwidth": 1e3, "efficiency": 1.0, "start_seconds": 0.0, "latency_seconds": 0.0}
    )
    machine = SELENE.model_copy(update={"fabric_link": link, "devices_per_node": 1})
    plan = mt_nlg(
        model={"layers": 2, "hidden": 512, "heads": 8, "head": "untied"},
        layout={"tensor": 1, "pipeline": 1, "data": 8, "shards": shards},
        batch={"sequences": 32},
        recompute={"mode": "none"},
        zero=3,
    )
    traffic = step_traffic(plan, Coordinate(0, 0, 0))
    counted = traffic["sharers" if shards else "replicas"]
    parts = step_seconds(
        case_of(plan), machine, OURS, prior_constants(), strides=strides_of(plan.layout, machine)
    )
    sharers = shards or 8
    moved = counted["reduce_scatter"] / sharers * (sharers - 1) + counted["all_gather"] * (sharers - 1)
    if shards:
        copies = 8 // shards
        moved += 2 * traffic["holders"]["all_reduce"] * (copies - 1) / copies
    assert float(parts.data_collectives) == pytest.approx(moved / (1e3 * prior_constants().fabric), rel=0.02)


@pytest.mark.parametrize("node", [6, 8])
@pytest.mark.parametrize("tensor", [1, 2, 8])
@pytest.mark.parametrize(
    "order",
    [
        AXES,
        ("data", "pipeline", "context", "tensor"),
        ("context", "data", "pipeline", "tensor"),
        ("tensor", "data", "pipeline", "context"),
    ],
)
def test_as_many_ranks_of_a_group_of_replicas_are_in_a_node_as_are(order, tensor, node):
    machine = SELENE.model_copy(update={"devices_per_node": node})
    for context, data in itertools.product((1, 2, 3, 4), (1, 2, 3, 8)):
        layout = Layout(tensor=tensor, pipeline=4, data=data, context=context, order=order)
        first = [
            rank
            for rank in range(layout.world_size)
            if layout.coordinate(rank).pipeline == layout.coordinate(rank).tensor == 0
        ]
        assert [layout.replica(number) for number in range(layout.replicas)] == first
        inside = np.bincount([rank // node for rank in first]).max()
        stride = strides_of(layout, machine).replicas
        assert ranks_in_node(machine, layout.replicas, stride) == inside
        for shards in (n for n in range(2, layout.replicas) if layout.replicas % n == 0):
            parted = layout.model_copy(update={"shards": shards})
            strides = strides_of(parted, machine)
            for ranks, apart in ((first[:shards], strides.sharers), (first[::shards], strides.holders)):
                inside = np.bincount([rank // node for rank in ranks]).max()
                assert ranks_in_node(machine, len(ranks), apart) == inside, (parted, ranks)


@pytest.mark.parametrize("node", [6, 8])
def test_strides_of_the_usual_order_are_those_of_the_layout(node):
    """Where tensor groups fill nodes without a rest, as a search has it, and copies do, or nodes copies."""
    machine = SELENE.model_copy(update={"devices_per_node": node})
    for tensor, context, data in itertools.product((1, 2, node), (1, 2, 3, 4), (1, 2, 3, 8)):
        for shards in (None, 2, 3, 4, 6):
            copy = tensor * (shards or node)
            if data * context % (shards or 1) or (copy < node and node % copy):
                continue
            layout = Layout(tensor=tensor, pipeline=4, data=data, context=context, shards=shards)
            case = replace(CASE, tensor=tensor, pipeline=4, data=data, context=context, shards=shards or 0)
            own, usual = strides_of(layout, machine), default_strides(case)
            groups = ((layout.replicas, "replicas"), (layout.sharers, "sharers"), (layout.copies, "holders"))
            for degree, name in groups:
                near = [ranks_in_node(machine, degree, getattr(s, name)) for s in (own, usual)]
                assert near[0] == near[1], (layout, name)
            assert own[:2] == usual[:2] and own.pipeline == usual.pipeline
