"""The arithmetic constraints of plans.

The arguments are numbers, or arrays with one entry per plan, so that `Plan.check` and the search, which tests thousands
of plans at once, share them.
"""

from typing import Any

import numpy as np

Numbers = Any  # an int or an array of them; the result then is a bool or an array of them


def divides_context(sequence: Numbers, context: Numbers, *, zigzag: bool) -> Numbers:
    """Return whether context ranks have equally many positions. zigzag: in two pieces each, one from each end."""
    pieces = 2 * context if zigzag else context
    return (np.asarray(context) == 1) | (sequence % pieces == 0)


def divides_sequence(sequence: Numbers, context: Numbers, tensor: Numbers, sequence_parallel: Numbers) -> Numbers:
    """Return whether tensor ranks under sequence parallelism (0 or 1) have equally many positions of a context rank."""
    return (np.asarray(sequence_parallel) == 0) | (sequence // context % tensor == 0)


def divides_batch(sequences: Numbers, micro: Numbers, data: Numbers) -> Numbers:
    """Return whether all replicas have equally many micro-batches."""
    return sequences % (micro * data) == 0


def has_layers(layers: Numbers, stages: Numbers) -> Numbers:
    """Return whether every stage of a balanced partition has a layer."""
    return stages <= layers


def has_chunks(chunks: Numbers, pipeline: Numbers) -> Numbers:
    """Return whether several chunks belong to several pipeline ranks."""
    return (np.asarray(chunks) == 1) | (np.asarray(pipeline) > 1)


def schedules_chunks(chunks: Numbers, *, several: Numbers, two: Numbers) -> Numbers:
    """Return whether a schedule accepts the chunks of a rank. several: it may have more than one. two: it has two."""
    return np.where(two, np.asarray(chunks) == 2, np.asarray(several) | (np.asarray(chunks) == 1))


def interleaves(micro_batches: Numbers, pipeline: Numbers) -> Numbers:
    """Return whether the micro-batches of a step fill the rounds of an interleaved schedule."""
    return micro_batches % pipeline == 0


def divides_replicas(shards: Numbers, replicas: Numbers) -> Numbers:
    """Return whether all sharding groups have `shards` ranks. 0 stands for all replicas."""
    return (np.asarray(shards) == 0) | (replicas % np.maximum(shards, 1) == 0)


def has_shards(shards: Numbers, zero: Numbers) -> Numbers:
    """Return whether the ZeRO stage shards something, if sharding groups are given."""
    return (np.asarray(shards) == 0) | (np.asarray(zero) > 0)
