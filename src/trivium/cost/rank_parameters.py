"""How many parameters a rank holds, from the shape alone and without padding, for one case or arrays of them.

The sums of plan.parameters' table; a test holds the two equal.
"""

import numpy as np

from trivium.cost.case import Case, Number


def layer_parameters(case: Case) -> Number:
    """Of one layer on one tensor rank."""
    c = case
    queries, keys = c.queries / c.tensor, c.keys / c.tensor
    ffn = c.ffn / c.tensor
    weights = c.hidden * (2 * queries + 2 * keys + (2 + c.gated) * ffn) + 2 * c.hidden
    of_qkv = queries + 2 * keys
    biases = of_qkv + ffn + 2 * c.hidden + 2 * c.hidden  # norms have one too
    of_norms = c.qk_norm * 2 * c.head_width + c.over_heads * (queries + keys)
    return weights + (1 - c.gated) * biases + c.qkv_bias * of_qkv + of_norms


def embedding_parameters(case: Case) -> Number:
    """Of the tokens' table on one tensor rank, and of learned positions."""
    return table_parameters(case) + (1 - case.gated) * case.sequence * case.hidden


def table_parameters(case: Case) -> Number:
    """Of one tensor rank's rows of the vocabulary."""
    return case.vocabulary / case.tensor * case.hidden


def rank_parameters(case: Case, layers: Number, first: Number, last: Number) -> Number:
    """Of a rank with so many layers and, where 1, the first and the last stage. Both ends share a tied table."""
    own_table = np.where(np.asarray(case.tied) == 1, 1 - first, 1)
    head = own_table * table_parameters(case) + (2 - case.gated) * case.hidden
    return layers * layer_parameters(case) + first * embedding_parameters(case) + last * head


def largest_parameter(case: Case, first: Number, last: Number) -> Number:
    """Elements of the largest parameter of such a rank."""
    columns = np.maximum((1 + case.gated) * case.ffn, case.queries + 2 * case.keys)
    matrix = columns / case.tensor * case.hidden
    return np.maximum(matrix, np.maximum(first, last) * table_parameters(case))
