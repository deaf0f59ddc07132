"""Laws of what replicas sum and update, compared with the tables of the plan."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from cost.plans import mt_nlg, small
from trivium.cost.case import case_of
from trivium.cost.collectives import Strides, default_strides, ranks_in_node
from trivium.cost.constants import prior_constants
from trivium.cost.estimate import Durations, strides_of
from trivium.cost.hardware import machine_named
from trivium.cost.memory_peaks import peaks_of_rank
from trivium.cost.rank_parameters import elements_of_rank
from trivium.cost.replicas import data_seconds, fullest_of, fullest_of_plan
from trivium.cost.stack import stack_named
from trivium.cost.stages import layers_by_stage, layers_of_ranks
from trivium.cost.step_time import step
from trivium.cost.traffic import step_traffic
from trivium.plan.layout import AXES, Coordinate, Layout, divisors

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
    held = [peaks_of_rank(plan, rank)[0].layers for rank in range(4)]
    assert held == [1, 1, 1, 5] and fullest_of_plan(plan).layers == 1
    assert fullest_of_plan(plan).elements == elements_of_rank(plan, 3).held


def ends_bytes(plan) -> float:
    """Return the bytes that are priced for the two uses of a tied table, over a link without latency."""
    free = {"start_seconds": 0.0, "latency_seconds": 0.0}
    link = SELENE.fabric_link
    machine = SELENE.model_copy(update={"fabric_link": link.model_copy(update=free)})

    def seconds(of):
        durations = Durations(of, machine, OURS)
        return float(data_seconds(durations.at, durations.kept, fullest_of_plan(plan)))

    untied = plan.model_copy(update={"model": plan.model.model_copy(update={"head": "untied"})})
    at = Durations(plan, machine, OURS).at
    return (seconds(plan) - seconds(untied)) * float(at.link_to(plan.layout.pipeline, at.strides.pipeline).bandwidth)


@pytest.mark.parametrize("zero", [0, 1])
def test_a_tied_table_is_summed_over_the_ends_as_the_traffic_counts_it(zero):
    plan = mt_nlg(zero=zero)
    counted = step_traffic(plan, Coordinate(0, 0, 0))["ends"]["all_reduce"]
    # The buckets of a tied table have a separate start, of some microseconds.
    assert ends_bytes(plan) == pytest.approx(counted, rel=0.1, abs=4e6)


def test_where_both_ends_are_on_one_rank_a_tied_table_is_summed_there():
    plan = mt_nlg(
        model={"layers": 70}, layout={"pipeline": 35, "chunks": 2}, schedule="zb-v", batch={"sequences": 1920}
    )
    assert not plan.ends_apart and not step_traffic(plan, Coordinate(0, 0, 0))["ends"]
    assert ends_bytes(plan) == pytest.approx(0, abs=4e6)


@pytest.mark.parametrize("shards", [None, 2, 4])
def test_stage_3_reduces_the_table_too(shards):
    """On an extremely slow fabric only traffic counts, so a table twice as large takes twice as long."""
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
    parts = step(case_of(plan), machine, OURS, prior_constants(), strides=strides_of(plan.layout, machine)).parts
    sharers = shards or 8
    moved = counted["reduce_scatter"] / sharers * (sharers - 1) + counted["all_gather"] * (sharers - 1)
    if shards:
        copies = 8 // shards
        moved += 2 * traffic["holders"]["all_reduce"] * (copies - 1) / copies
    assert float(parts.data_collectives) == pytest.approx(moved / (1e3 * prior_constants().fabric), rel=0.02)


def groups_of(layout: Layout) -> dict[str, list[tuple[int, ...]]]:
    """Return all groups by the names of their strides."""
    axes = {"tensor": ("tensor",), "context": ("context",), "pipeline": ("pipeline",), "replicas": layout.replica_axes}
    sets = {name: layout.peer_sets(*over) for name, over in axes.items()}
    return sets | {"sharers": layout.sharer_sets(), "holders": layout.holder_sets()}


def test_the_slowest_group_says_how_many_of_its_ranks_are_in_a_node() -> None:
    """No group is priced with more ranks in a node than the least that it has in one, and with exactly that number if
    groups fill nodes, divide them or differ. It is priced over the fabric if and only if some group leaves its node."""
    draws = random.Random(0)
    for _ in range(60):
        tensor, pipeline, context = (draws.choice((1, 2, 3, 4)) for _ in range(3))
        data = draws.choice((1, 2, 3, 4, 6, 19, 20))
        order = tuple(draws.sample(AXES, 4))
        shards = draws.choice([None, *divisors(data * context)[1:]])
        layout = Layout(tensor=tensor, pipeline=pipeline, data=data, context=context, order=order, shards=shards)
        machine = SELENE.model_copy(update={"devices_per_node": draws.choice((4, 6, 8))})
        node, strides = machine.devices_per_node, strides_of(layout, machine)
        for name, sets in groups_of(layout).items():
            degree, steps = len(sets[0]), {tuple(np.diff(ranks)) for ranks in sets}
            near = ranks_in_node(machine, degree, getattr(strides, name))
            fewest = min(min(Counter(rank // node for rank in ranks).values()) for ranks in sets)
            assert near <= fewest and (near < degree) == (fewest < degree), (layout, node, name)
            span = degree * next(iter(steps))[0] if degree > 1 else 1
            if len(set().union(*steps)) > 1 or not (span % node and node % span):
                assert near == fewest, (layout, node, name)


def test_strides_of_the_usual_order_are_those_of_the_layout():
    for node, tensor, context, data in itertools.product((6, 8), (1, 2, 3, 8), (1, 2, 3, 4), (1, 2, 3, 8)):
        machine = SELENE.model_copy(update={"devices_per_node": node})
        for shards in (None, 2, 3, 4, 6):
            if data * context % (shards or 1):
                continue
            layout = Layout(tensor=tensor, pipeline=4, data=data, context=context, shards=shards)
            case = replace(CASE, tensor=tensor, pipeline=4, data=data, context=context, shards=shards or 0)
            own, usual = strides_of(layout, machine), default_strides(case, machine)
            degrees = Strides(tensor, context, layout.replicas, 4, layout.sharers, layout.copies)
            for one, other, degree in zip(own, usual, degrees, strict=True):
                assert one == other or degree == 1, layout
