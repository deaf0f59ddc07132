"""The division of a rank's parameters into flat buffers: the table that the runtime fills and the cost model prices.

A bucket holds parameters whose gradients are summed over the same groups; frozen ones have separate buckets, and so
have those of experts where expert ranks divide them.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from math import prod
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from trivium.plan.float8 import Float8, scaled_weights
from trivium.plan.layers.part import Number, Owner, Parameter
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import TOKENS, local_shape, parameters, stage_parameters
from trivium.plan.plan import Plan

# A bucket is closed once it has BUCKET_ELEMENTS: large enough for bandwidth, small enough to overlap. In large sharding
# groups a collective takes longer to start, so buckets have one such size per SHARERS_PER_SIZE ranks, up to MAX_SIZES:
# a step of 1.3B on 256 A100s takes a tenth less (predicted; Megatron-LM has the larger of 40M and 1M a replica).
BUCKET_ELEMENTS, SHARERS_PER_SIZE, MAX_SIZES = 4 << 20, 8, 8
# A rank without replicas sends no gradients. Small buckets fit sooner into the memory of freed activations, and a
# parameter that fills a bucket uses the gradient of the backward without a copy.
LONE_BUCKET_ELEMENTS = 1 << 18
# A GPU updates buckets together until they have at least this many elements, so that an update takes longer than the
# launch of the next one. The same number of 16-bit gradients is copied to the dtype of the masters at a time.
UPDATE_ELEMENTS = 1 << 25
# Parameters and slices start at multiples of this many elements, 16 bytes in 16-bit dtypes: a GPU reads them at full
# speed, and a kernel that was compiled for the addresses of one layer fits every layer.
ALIGNMENT_ELEMENTS = 8

Entry = TypeVar("Entry")

PartialOver = Literal["tensor", "ends"]


class Item(NamedTuple):
    """One parameter of one stage on a rank. borrowed: a copy, of the tied table in a last stage, or of a head that
    ranks take in turns, of which the first rank's counts."""

    parameter: Parameter
    stage: int
    elements: int  # elements of this rank's shard
    borrowed: bool

    @property
    def room(self) -> int:
        """Elements until the next one may begin."""
        return int(padded(self.elements))


class Span(NamedTuple):
    """Elements [start, stop) of a bucket, which belong to one group of the optimizer. The first `decayed` of them have
    weight decay."""

    group: int
    start: int
    decayed: int
    stop: int


class _Kind(NamedTuple):
    """The properties that all parameters of a bucket share. owner: None if they may have several. copied: whether every
    tensor rank holds the whole of them, where messages round numbers that share a scale: beside slices, which differ
    between tensor ranks, copies would be rounded to other numbers on each."""

    over: tuple[PartialOver, ...]
    tied: bool
    trains: bool
    by_expert: bool
    wide: bool
    float8: bool
    copied: bool
    owner: Owner | None


class BucketRow(NamedTuple):
    """Parameters that share a flat buffer, sorted by the group of the optimizer that updates them. In each group those
    with weight decay come first, otherwise in the order in which the backward finishes them.

    spans: the elements of each group; the padding belongs to the last. trains: whether they have gradients; frozen
    parameters have buckets of their own. partial_over: groups over which their gradients are summed before the data
    ranks: tensor ranks (sequence parallelism, norms of heads), pipeline ends (a tied table, a head taken in turns).
    tied: it holds a table whose gradient has two parts, and is complete only after the step's last backward.
    by_expert: expert ranks divide its parameters, so that replicas and sharers are those with the same experts. wide:
    its weights have the dtype of master weights. float8: at ZeRO stage 3 they are gathered in 8 bits."""

    items: tuple[Item, ...]
    spans: tuple[Span, ...]
    trains: bool
    partial_over: tuple[PartialOver, ...]
    tied: bool
    by_expert: bool
    wide: bool
    float8: bool
    padded: int  # elements


def bucket_table(plan: Plan, pipeline: int) -> tuple[BucketRow, ...]:
    """The buckets of a pipeline rank: last layers first."""
    kinds: dict[_Kind, list[Item]] = {}
    narrow = gathered_weights(plan.precision.float8, plan.model) if plan.zero >= 3 else frozenset()
    shares_scales = plan.layout.tensor > 1 and plan.messages.share_scales
    for item in reversed(list(held(plan, pipeline))):
        p = item.parameter
        # At ZeRO stage 3 the weights of one module are gathered and freed together, apart from the others'.
        owner = p.owner if plan.zero >= 3 else None
        by_expert = p.by_expert and plan.layout.expert > 1
        key = _Kind(
            partial_over(plan, p),
            is_tied(plan, p),
            plan.optimizer.trains(p),
            by_expert,
            p.wide,
            p.name in narrow,
            shares_scales and p.split is None,
            owner,
        )
        kinds.setdefault(key, []).append(item)
    return tuple(
        _row(items, plan, kind)
        for kind, every in kinds.items()
        for items in in_buckets(every, lambda item: item.room, _sharers(plan, by_expert=kind.by_expert))
    )


def slices_of(plan: Plan, row: BucketRow) -> int:
    """Return the number of slices of a bucket that different ranks update."""
    return _sharers(plan, by_expert=row.by_expert) if plan.zero >= 1 else 1


def on_host(plan: Plan, rows: Iterable[BucketRow]) -> int:
    """Return how many of the trained buckets of a pipeline rank, the first ones, have their state on the host."""
    return plan.offload.buckets([row.padded // slices_of(plan, row) for row in rows if row.trains])


def _sharers(plan: Plan, *, by_expert: bool) -> int:
    return plan.layout.expert_sharers if by_expert else plan.layout.sharers


def bucket_elements(sharers: Number) -> Number:
    """Return the number of elements with which a bucket is closed, for one size of the sharding group or an array."""
    among: Number = BUCKET_ELEMENTS * np.clip(np.asarray(sharers) // SHARERS_PER_SIZE, 1, MAX_SIZES)
    return np.where(np.asarray(sharers) > 1, among, LONE_BUCKET_ELEMENTS)


def in_buckets(items: Iterable[Entry], room_of: Callable[[Entry], int], sharers: int) -> Iterator[list[Entry]]:
    """Items of one kind, by bucket, in the order in which buckets are closed."""
    limit = int(bucket_elements(sharers))
    filling: list[Entry] = []
    filled = 0
    for item in items:
        room = room_of(item)
        if sharers == 1 and room >= limit:
            yield [item]
            continue
        filling.append(item)
        filled += room
        if filled >= limit:
            yield filling
            filling, filled = [], 0
    if filling:
        yield filling


def _row(items: list[Item], plan: Plan, kind: _Kind) -> BucketRow:
    group_of = {item: plan.optimizer.number_of(item.parameter.name) for item in items}
    ordered = sorted(items, key=lambda item: (group_of[item], not item.parameter.decay))
    size = padded(sum(item.room for item in items), _sharers(plan, by_expert=kind.by_expert))
    spans: list[Span] = []
    for group, own in groupby(ordered, key=group_of.__getitem__):
        several, start = list(own), spans[-1].stop if spans else 0
        decayed = sum(item.room for item in several if item.parameter.decay)
        spans.append(Span(group, start, decayed, start + sum(item.room for item in several)))
    spans[-1] = spans[-1]._replace(stop=size)
    over, tied, trains, by_expert, wide, float8, *_ = kind
    return BucketRow(tuple(ordered), tuple(spans), trains, over, tied, by_expert, wide, float8, padded=size)


def gathered_weights(float8: Float8 | None, model: ModelShape) -> frozenset[str]:
    """Return the names of the weights that ZeRO stage 3 gathers in 8 bits. What adapters read is gathered as it is."""
    if float8 is None or not float8.gathered:
        return frozenset()
    adapted = ((n, each) for n, layer in enumerate(model.each_layer) for each in layer.adapted or ())
    read = {f"layers.{n}.{each.base.name}" for n, each in adapted if each.adapter.reads_weight}
    return frozenset({p.name for p in scaled_weights(float8, parameters(model), model.layers)} - read)


def padded(elements: Any, sharers: Any = 1) -> Any:
    """Return the size of a bucket with `elements` elements, of which each rank of the sharding group owns an equal
    slice. The arguments are numbers, or arrays with one entry per plan."""
    unit = sharers * ALIGNMENT_ELEMENTS
    return -(-elements // unit) * unit


def held(plan: Plan, pipeline: int) -> Iterator[Item]:
    """Yield every parameter of a pipeline rank once, in the model's order."""
    last = plan.last_stage
    stages = plan.stages_of(pipeline)
    for stage in stages:
        for p in stage_parameters(plan.model, plan.layers_of(stage), first=stage == 0, last=stage == last):
            elsewhere = plan.heads_in_turns and pipeline != 0
            borrowed = stage != 0 and (p.name == TOKENS or (p.owner == "head" and elsewhere))
            if not (p.name == TOKENS and borrowed and 0 in stages):  # both ends on one rank share one table
                yield Item(p, stage, prod(local_shape(p, plan.model, plan.layout)), borrowed)


def is_tied(plan: Plan, parameter: Parameter) -> bool:
    """Whether a parameter is the table that the embedding and the head share."""
    return parameter.name == TOKENS and plan.model.head == "tied"


def partial_over(plan: Plan, parameter: Parameter) -> tuple[PartialOver, ...]:
    """The groups over which a parameter's gradient is partial, besides the data ranks."""
    over: list[PartialOver] = []
    parted = parameter.summed or (parameter.per_position and plan.sequence_parallel)
    if parted and plan.layout.tensor > 1:
        over.append("tensor")
    of_heads = plan.heads_in_turns and parameter.owner == "head"
    if (is_tied(plan, parameter) and plan.ends_apart) or of_heads:
        over.append("ends")
    return tuple(over)
