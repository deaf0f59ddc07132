"""Where the layers of a plan sit, remembered: pricing asks thousands of times, and they never change; and of arrays
of plans, how many each rank has."""

from functools import lru_cache

import numpy as np

from trivium.cost.case import Case
from trivium.plan.layers.part import Number
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape
from trivium.plan.partition import Partition
from trivium.plan.plan import Plan


def layers_by_stage(plan: Plan) -> tuple[range, ...]:
    """`plan.layers_of` of every stage."""
    layers = _layers(plan.partition, plan.model, plan.layout)
    return (*layers, plan.layers_of(plan.last_stage)) if plan.heads_in_turns else layers


def layers_of_ranks(case: Case) -> tuple[Number, Number, Number]:
    """Layers of the first rank of a pipeline, the most of one in the middle, and of the last, where stages are as
    plan.Partition() has them: equal, and what is over goes to the middle; but for the ends' allowance."""
    p, stages = np.asarray(case.pipeline), np.asarray(case.pipeline) * case.chunks
    lighter = np.where(p > 1, case.ends_lighter, 0)
    whole, over = np.divmod(np.asarray(case.layers) + 2 * lighter, stages)
    start = (stages - over) // 2  # of the stages with a layer more
    chunks = np.asarray(case.chunks)

    def extra(rank: Number) -> Number:
        """Of a rank's stages, which are p apart, those with a layer more."""
        more: Number = -((rank - start - over) // p) + (rank - start) // p
        return more

    # Stages that go down the ranks and back: the first rank has the two outermost, the last the two innermost.
    folded = (np.asarray(case.ends_together) > 0) & (p > 1)
    first = np.where(folded, np.maximum(0, over - stages + 2), extra(0))
    last = np.where(folded, np.minimum(2, over), extra(p - 1))
    most = np.where(folded, np.minimum(2, over), -(-over // p))
    each = chunks * whole
    return each + first - lighter, each + most, each + last - lighter


@lru_cache(maxsize=1024)
def _layers(partition: Partition, model: ModelShape, layout: Layout) -> tuple[range, ...]:
    return partition.ranges(model, layout)
