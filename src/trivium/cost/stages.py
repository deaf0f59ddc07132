"""Where the layers of a plan sit, remembered: pricing asks thousands of times, and they never change."""

from functools import lru_cache

from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.partition import Partition
from trivium.plan.plan import Plan


def layers_by_stage(plan: Plan) -> tuple[range, ...]:
    """`plan.layers_of` of every stage."""
    return _layers(plan.partition, plan.model, plan.layout)


@lru_cache(maxsize=1024)
def _layers(partition: Partition, model: ModelShape, layout: Layout) -> tuple[range, ...]:
    return partition.ranges(model, layout)
