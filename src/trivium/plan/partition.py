"""Division of the layers into stages."""

import heapq
import itertools
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from trivium.config import Config, NotNegative
from trivium.plan.constraints import has_layers
from trivium.plan.layout import Layout
from trivium.plan.model_shape import ModelShape


class Partition(Config):
    """`layers` per stage if given; otherwise balanced, where the embedding and the head weigh as layers."""

    layers: tuple[NotNegative, ...] | None = None  # number of layers of each stage, first to last; None: balanced
    embedding_weight: Annotated[float, Field(ge=0)] = 0.0  # number of layers as which the embedding counts
    head_weight: Annotated[float, Field(ge=0)] = 0.0  # number of layers as which the output matrix counts

    def counts(self, model: ModelShape, layout: Layout) -> tuple[int, ...]:
        """Layers of each stage, first to last."""
        if self.layers is not None:
            return self.layers
        return balanced(model.layers, layout.stages, self.embedding_weight, self.head_weight)

    def ranges(self, model: ModelShape, layout: Layout) -> tuple[range, ...]:
        """Layer numbers of each stage; together they cover the model exactly once."""
        starts = [0]
        for count in self.counts(model, layout):
            starts.append(starts[-1] + count)
        return tuple(range(a, b) for a, b in itertools.pairwise(starts))

    def problems(self, model: ModelShape, layout: Layout) -> list[str]:
        """Explicit layers that do not cover the model once, or too few layers for the stages."""
        if self.layers is None:
            if not has_layers(model.layers, layout.stages):
                return [
                    f"plan.model.layers ({model.layers}) must be at least the number of stages, plan.layout."
                    f"pipeline x chunks ({layout.pipeline} x {layout.chunks} = {layout.stages}); use fewer stages, "
                    f"or give plan.partition.layers with zeros"
                ]
            return []
        weights = {"embedding_weight": self.embedding_weight, "head_weight": self.head_weight}
        found = [
            f"plan.partition.{name} is {weight:g}, and plan.partition.layers {list(self.layers)} says what each stage "
            f"holds; set plan.partition.{name}=0 or plan.partition.layers=null"
            for name, weight in weights.items()
            if weight
        ]
        if len(self.layers) != layout.stages:
            found.append(
                f"plan.partition.layers {list(self.layers)} names {len(self.layers)} stages, but plan.layout has "
                f"pipeline x chunks = {layout.pipeline} x {layout.chunks} = {layout.stages}"
            )
        if sum(self.layers) != model.layers:
            found.append(
                f"plan.partition.layers {list(self.layers)} sums to {sum(self.layers)}; it must cover "
                f"plan.model.layers ({model.layers}) exactly once"
            )
        return found


@lru_cache(maxsize=4096)
def balanced(layers: int, stages: int, embedding_weight: float = 0.0, head_weight: float = 0.0) -> tuple[int, ...]:
    """Return the layers of each stage under equal loads. The weights are the numbers of layers that embedding and head
    count as."""
    loads = [0.0] * stages
    loads[0] += embedding_weight
    loads[-1] += head_weight
    counts = [0] * stages
    middle = (stages - 1) / 2
    # Ties go to the middle: the ends also hold the embedding and the head.
    lightest = [(load, abs(stage - middle), stage) for stage, load in enumerate(loads)]
    heapq.heapify(lightest)
    for _ in range(layers):
        load, off_middle, stage = lightest[0]
        counts[stage] += 1
        heapq.heapreplace(lightest, (load + 1, off_middle, stage))
    return tuple(counts)
