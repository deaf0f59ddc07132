"""Where the layers of a plan sit, remembered: pricing asks thousands of times, and they never change; and of arrays
of plans, how many each rank has."""

from functools import lru_cache

import numpy as np

from trivium.cost.case import Case, Number
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.partition import Partition
from trivium.plan.plan import Plan


def layers_by_stage(plan: Plan) -> tuple[range, ...]:
    """`plan.layers_of` of every stage."""
    return _layers(plan.partition, plan.model, plan.layout)


def layers_of_ranks(case: Case) -> tuple[Number, Number, Number]:
    """Layers of the first rank, of a middle one, and of the last, balanced but for the ends' allowance."""
    p = np.asarray(case.pipeline)
    lighter = np.where(p > 1, case.ends_lighter, 0)
    most = np.ceil((np.asarray(case.layers) + 2 * lighter) / p)
    fewest = np.floor((np.asarray(case.layers) + 2 * lighter) / p)
    return most - lighter, most, fewest - lighter


@lru_cache(maxsize=1024)
def _layers(partition: Partition, model: ModelShape, layout: Layout) -> tuple[range, ...]:
    return partition.ranges(model, layout)
