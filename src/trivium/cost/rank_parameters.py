"""How many parameters a rank holds, without padding, for one case or arrays of them.

The sums of plan.parameters' table; a test holds the two equal.
"""

from collections.abc import Iterable

import numpy as np

from trivium.cost.case import Case, mean
from trivium.plan.layers.part import Number, Row


def layer_parameters(case: Case) -> Number:
    """Return the parameters of one layer on one tensor rank."""
    return case.of_a_layer(lambda layer: _held(layer.rows, case))


def embedding_parameters(case: Case) -> Number:
    """Of the tokens' table on one tensor rank, and of learned positions."""
    return mean(case.embeddings, lambda embedding: _held(embedding.rows(), case))


def table_parameters(case: Case) -> Number:
    """Of one tensor rank's rows of the vocabulary."""
    return case.vocabulary / case.tensor * case.hidden


def rank_parameters(case: Case, layers: Number, first: Number, last: Number) -> Number:
    """Of a rank with so many layers and, where 1, the first and the last stage. Both ends share a tied table."""
    own_table = np.where(np.asarray(case.tied) == 1, 1 - first, 1)
    norm = mean(case.heads, lambda head: _held(head.norm.rows(), case))
    head = own_table * table_parameters(case) + norm
    return layers * layer_parameters(case) + first * embedding_parameters(case) + last * head


def largest_parameter(case: Case, first: Number, last: Number) -> Number:
    """Elements of the largest parameter of such a rank."""
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
    """Of a row on one tensor rank."""
    if row.padded:
        return table_parameters(case)
    return row.elements if row.split is None else row.elements / case.tensor
