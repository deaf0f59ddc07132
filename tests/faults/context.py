"""Faults of context parallelism, packed documents and sliding windows."""

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch

from faults.mutant import fault, plan
from trivium.comms.group import Group
from trivium.kernels import sight
from trivium.kernels.sight import Seen, Sight
from trivium.model.inputs import Inputs
from trivium.parallel.context import attention
from trivium.parallel.context import ring as ring_attention
from trivium.parallel.sharding import buckets
from trivium.parallel.sharding.buckets import Bucket
from trivium.plan.layers.layer import Layer
from trivium.plan.model_shape import ModelShape
from trivium.tokens.rows import Rows
from trivium.training import batches, trainer
from trivium.training.batches import Packing

Tensor = torch.Tensor

APART = {"documents": "apart", "end_of_text": 3}
RING = plan(context=2)
ULYSSES = plan(context=2, context_attention="ulysses")
PACKED = plan(model=APART)
PACKED_RING = plan(context=2, model=APART)
WINDOW = {"window": 3}
WINDOW_RING = plan(context=2, model=WINDOW)


@fault(buckets, "all_reduce_begin", plan(context=2, zero=0), plan(data=2, context=2, zero=0))
def context_ranks_not_summed(original, mesh):
    """Gradients are summed over data ranks and not over those that share a sequence."""
    return lambda x, group: original(x, mesh.data)


@fault(Bucket, "owned", plan(data=2, context=2, zero=1, order=("context", "pipeline", "tensor", "data")))
def slices_counted_by_axis(original, mesh):
    """A replica takes the slice of its place by data, then context, although the layout has context ranks the farthest
    apart and the collectives count in that order."""

    def owned(self: Bucket) -> slice:
        right: slice = original(self)
        size = right.stop - right.start
        place = mesh.data.index * mesh.context.size + mesh.context.index
        return slice(place * size, (place + 1) * size)

    return owned


@fault(ring_attention, "rotate_begin", RING, PACKED_RING)
def key_gradients_not_home(original, mesh):
    """Ring attention: the gradients of keys and values stop one rank before the one that owns them."""

    turns = count(1)

    def rotate_begin(tensors: tuple[Tensor, ...], group: Group, tag: int = 0) -> ring_attention.Arriving:
        arriving: ring_attention.Arriving = original(tensors, group, tag)
        if tag != ring_attention.GRADIENTS or next(turns) % group.size:
            return arriving
        return lambda: (arriving(), tensors)[1]

    return rotate_begin


@fault(sight, "seen_of", RING)
def causal_by_local_numbers(original, mesh):
    """The causal mask compares positions within a rank's part instead of within the sequence."""

    def seen_of(queries: np.ndarray, keys: np.ndarray, first: np.ndarray) -> Seen | None:
        found: Seen | None = original(queries - queries.min(), keys - keys.min(), first)
        return found

    return seen_of


@fault(attention._Exchange, "backward", ULYSSES)
def exchange_not_reversed(original, mesh):
    """Ulysses: the backward of the all-to-all hands heads to the wrong ranks."""

    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        dim = 1 if ctx.split == "heads" else 2
        return original(ctx, grads[0].flip(dim))

    return backward


@fault(Inputs, "_numbers", RING, ULYSSES)
def positions_of_the_first_context_part(original, mesh):
    """Every context rank embeds its positions as if its part began the sequence."""
    return lambda self: torch.arange(self.shape[0])


@fault(batches, "Sight", PACKED, PACKED_RING)
def documents_see_each_other(original, mesh):
    """The document mask is dropped, and packed documents leak into the next."""
    return lambda order, starts: Sight(order, None)


@fault(batches, "packing", PACKED)
def positions_run_on(original, mesh):
    """Positions do not start again with a packed document."""

    def packing(rows: Rows, end_of_text: int) -> Packing:
        right: Packing = original(rows, end_of_text)
        return right._replace(positions=np.tile(np.arange(rows.tokens.shape[1]), (len(rows.tokens), 1)))

    return packing


@fault(trainer, "inputs_of", PACKED)
def next_document_predicted(original, mesh):
    """The loss counts the first token of the next document, which nothing before it can tell."""

    def inputs_of(*arguments: Any, **more: Any) -> Inputs:
        made: Inputs = original(*arguments, **more)
        assert made.weights is not None, f"{made} is not of packed documents"
        return replace(made, weights=torch.ones_like(made.weights))

    return inputs_of


@fault(Sight, "within", plan(model=WINDOW), plan(model={**APART, **WINDOW}), WINDOW_RING)
def window_off_by_one(original, mesh):
    """The window counts the positions before the query's own, so that it is one too long."""
    return lambda self, window: original(self, None if window is None else window + 1)


@fault(sight, "seen_of", WINDOW_RING, PACKED_RING)
def tile_beyond_the_reach(original, mesh):
    """Ring attention: a tile that is fully visible by order alone is attended to without a mask, also if a window ends
    or a document starts in it."""
    return lambda queries, keys, first: original(queries, keys, np.zeros_like(first))


@fault(ModelShape, "each_layer", plan(pipeline=2, model={**WINDOW, "first": [{"times": 2, "window": None}]}))
def window_by_layers_of_the_stage(original, mesh):
    """The layers that have the window are counted from the first layer of their stage."""

    def each_layer(self: ModelShape) -> tuple[Layer, ...]:
        layers = original(self)
        return tuple(layers[n % (self.layers // mesh.pipeline.size)] for n in range(len(layers)))

    return each_layer
