"""Pairs of duplicates → groups, and which document of each group survives."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def components(pairs: Iterable[tuple[int, int]], *, documents: int) -> NDArray[np.int32]:
    """The group number of each document, shape [documents]: documents linked by pairs share a group."""
    edges = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    ones = np.ones(len(edges), dtype=np.int8)
    graph = coo_array((ones, (edges[:, 0], edges[:, 1])), shape=(documents, documents))
    _, labels = connected_components(graph, directed=False)
    return np.asarray(labels, dtype=np.int32)


def survivors(
    labels: Sequence[int] | NDArray[np.int32], sources: Sequence[str], *, priority: Sequence[str]
) -> list[int]:
    """For each document, the index of the document that survives for its group.

    That is the first document of the source that comes first in `priority` (MT-NLG's rule); sources not
    listed come after those that are, all alike.
    """
    rank = {source: place for place, source in enumerate(priority)}
    best: dict[int, tuple[int, int]] = {}
    for index, (label, source) in enumerate(zip(labels, sources, strict=True)):
        key = (rank.get(source, len(rank)), index)
        best[int(label)] = min(best.get(int(label), key), key)
    return [best[int(label)][1] for label in labels]
