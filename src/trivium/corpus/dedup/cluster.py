"""Pairs of duplicates → groups, and which document of each group survives."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def components(pairs: ArrayLike, *, documents: int) -> NDArray[np.int32]:
    """The group number of each document, shape [documents]: documents linked by `pairs` [pairs, 2] share one."""
    edges = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    ones = np.ones(len(edges), dtype=np.int8)
    graph = coo_array((ones, (edges[:, 0], edges[:, 1])), shape=(documents, documents))
    _, labels = connected_components(graph, directed=False)
    return np.asarray(labels, dtype=np.int32)


def ranks_of(sources: Sequence[str], *, priority: Sequence[str]) -> NDArray[np.int64]:
    """The place of each source in `priority`; sources not listed come after those that are, all alike."""
    rank = {source: place for place, source in enumerate(priority)}
    return np.array([rank.get(source, len(rank)) for source in sources], dtype=np.int64)


def survivors(labels: ArrayLike, ranks: ArrayLike, quality: ArrayLike | None = None) -> NDArray[np.int64]:
    """For each document, the index of the document that survives for its group.

    That is the one of the lowest rank (MT-NLG's rule: of the best source), then of the highest quality if
    that is given, then the first.
    """
    groups, places = np.asarray(labels), np.asarray(ranks)
    figures = np.zeros(len(groups)) if quality is None else np.asarray(quality, dtype=np.float64)
    order = np.lexsort((np.arange(len(groups)), -figures, places, groups))
    first = np.ones(len(order), dtype=bool)
    first[1:] = groups[order][1:] != groups[order][:-1]
    found = np.empty(len(order), dtype=np.int64)
    found[order] = order[first][np.cumsum(first) - 1]
    return found
