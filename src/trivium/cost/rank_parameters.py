"""Count the parameters that a rank holds: for one plan from its buckets, padding included, and for a case without
it."""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from trivium.cost.case import Case, mean, state_bytes
from trivium.plan.buckets import BucketRow, bucket_table, on_host, padded, slices_of
from trivium.plan.layers.part import Number, Row
from trivium.plan.plan import Plan
from trivium.plan.precision import BYTES


class Elements(NamedTuple):
    """Elements of all buckets of a rank, elements of the trained buckets, and bytes of the optimizer's states. experts,
    trained_experts: those of both that expert ranks divide, which are sharded among fewer ranks. wide: those of `held`
    that have the dtype of master weights. away, away_bytes: elements that the rank updates whose state the host keeps,
    and the bytes of their states."""

    held: Number
    trained: Number
    state_bytes: Number
    experts: Number = 0.0
    trained_experts: Number = 0.0
    wide: Number = 0.0
    away: Number = 0.0
    away_bytes: Number = 0.0


@lru_cache(maxsize=1024)
def elements_of_rank(plan: Plan, pipeline: int, sharer: int = 0) -> Elements:
    """Count a rank's elements as the runtime lays them out in buckets.

    sharer: the rank's number in its sharding group. Its slices may belong to other groups of the optimizer than those
    of its peers.
    """
    rows = bucket_table(plan, pipeline)
    trained, number = [row for row in rows if row.trains], on_host(plan, rows)
    states = [_states(row, plan, sharer) for row in trained]
    experts = [row for row in rows if row.by_expert]
    return Elements(
        *_padded(rows),
        sum(states),
        *_padded(experts),
        wide=sum(row.padded for row in rows if row.wide),
        away=sum(row.padded // slices_of(plan, row) for row in trained[:number]),
        away_bytes=sum(states[:number]),
    )


def _states(row: BucketRow, plan: Plan, sharer: int) -> int:
    """Return the bytes of the optimizer's states of a rank's slice of a bucket."""
    slices, masters = slices_of(plan, row), BYTES[plan.precision.masters]
    size = row.padded // slices
    first = (sharer // plan.layout.expert if row.by_expert else sharer) % slices * size
    return sum(
        max(0, min(span.stop, first + size) - max(span.start, first)) * state_bytes(span.group, plan.optimizer, masters)
        for span in row.spans
    )


def _padded(rows: Iterable[BucketRow]) -> tuple[int, int]:
    """Return the elements of all buckets, and those of the trained ones."""
    sizes = [(row.padded, row.padded * row.trains) for row in rows]
    return sum(size for size, _ in sizes), sum(trained for _, trained in sizes)


def slice_elements(case: Case, elements: Number, experts: Number = 0.0) -> Number:
    """Return how many of a bucket's elements one rank updates: its padded slice under ZeRO, else all of them. experts:
    those of the elements that expert ranks divide."""
    if np.any(experts):
        return _slice(case, elements - experts, case.sharers) + _slice(case, experts, case.expert_sharers)
    return _slice(case, elements, case.sharers)


def _slice(case: Case, elements: Number, sharers: Number) -> Number:
    among = np.where(np.asarray(case.zero) >= 1, sharers, 1)
    owned: Number = padded(elements, among) / among
    return owned


def layer_parameters(case: Case) -> Number:
    """Return the parameters of one layer on one rank."""
    return case.of_a_layer(lambda layer: _held(layer.rows, case))


def layer_experts(case: Case) -> Number:
    """Return the parameters of one layer that several expert ranks divide, on one rank."""
    experts = case.of_a_layer(lambda layer: _held((row for row in layer.rows if row.by_expert), case))
    return (np.asarray(case.expert) > 1) * experts


def layer_wide(case: Case) -> Number:
    """Return the parameters of one layer that have the dtype of master weights, on one rank."""
    return case.of_a_layer(lambda layer: _held((row for row in layer.rows if row.wide), case))


def embedding_parameters(case: Case) -> Number:
    """Return the parameters of the token table and of learned positions on one tensor rank."""
    return mean(case.embeddings, lambda embedding: _held(embedding.rows(), case))


def table_parameters(case: Case) -> Number:
    """Return the parameters of the token table on one tensor rank."""
    return case.vocabulary / case.tensor * case.hidden


def rank_parameters(case: Case, layers: Number, first: Number, last: Number) -> Number:
    """Return the parameters of a rank with `layers` layers. first, last: 1 if it has the first or the last stage. A
    rank with both stages holds a tied table once."""
    own_table = np.where(np.asarray(case.tied) == 1, 1 - first, 1)
    norm = mean(case.heads, lambda head: _held(head.norm.rows(), case))
    head = own_table * table_parameters(case) + norm
    return layers * layer_parameters(case) + first * embedding_parameters(case) + last * head


def largest_parameter(case: Case, first: Number, last: Number) -> Number:
    """Return the elements of the largest parameter of a rank. first, last: as in `rank_parameters`."""
    matrix = case.of_a_layer(lambda layer: _largest(layer.rows, case))
    return np.maximum(matrix, np.maximum(first, last) * table_parameters(case))


def _held(rows: Iterable[Row], case: Case) -> Number:
    return sum((_elements(row, case) for row in rows), 0.0)


def _largest(rows: Iterable[Row], case: Case) -> Number:
    largest: Number = 0.0
    for row in rows:
        largest = np.maximum(largest, _elements(row, case))
    return largest


def _elements(row: Row, case: Case) -> Number:
    """Return the elements of a row on one rank."""
    if row.padded:
        return table_parameters(case)
    elements = row.elements if row.split is None else row.elements / case.tensor
    return elements / case.expert if row.by_expert else elements
