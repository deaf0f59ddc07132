"""Where the stages and layers of a plan sit, remembered: pricing asks thousands of times, and they never change."""

from functools import lru_cache

from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.partition import Partition
from trivium.plan.plan import Plan
from trivium.plan.schedule import ScheduleName, make_schedule, stages_of_ranks


def layers_by_stage(plan: Plan) -> tuple[range, ...]:
    """`plan.layers_of` of every stage."""
    return _layers(plan.partition, plan.model, plan.layout)


def stages_by_rank(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """`plan.stages_of` every pipeline rank."""
    if plan.schedule == "given":
        return stages_of_ranks(plan.schedule_table())
    return _stages(plan.schedule, plan.layout.pipeline, plan.layout.chunks)


@lru_cache(maxsize=1024)
def _layers(partition: Partition, model: ModelShape, layout: Layout) -> tuple[range, ...]:
    return partition.ranges(model, layout)


@lru_cache(maxsize=1024)
def _stages(name: ScheduleName, pipeline: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    # Who holds what does not depend on the number of micro-batches: the shortest legal step tells.
    return stages_of_ranks(make_schedule(name, pipeline=pipeline, micro_batches=pipeline, chunks=chunks))
