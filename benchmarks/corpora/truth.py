"""Every pair of documents with a Jaccard similarity of at least 0.8, exactly: no hashing of signatures.

Shingle sets are built here in plain Python (words lower-cased by str.lower, 64-bit blake2b of five of them), so
that nothing is shared with what is judged. Two sets of similarity J share one of the first n - ceil(J n) + 1 of
their n shingles in any order common to all sets; here rare shingles come first. So only pairs that share one of
these are compared, and none is missed (prefix filtering: Chaudhuri, Ganti and Kaushik 2006).
"""

import re
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numba import njit
from numpy.typing import NDArray

_WORD = re.compile(r"\w+")


def true_pairs(corpus: Path, path: Path, *, threshold: float) -> NDArray[np.int64]:
    """Pairs of row numbers, shape [pairs, 2]; computed once and kept in `path`."""
    if not path.is_file():
        sets = [_shingles(text) for text in pq.read_table(corpus, columns=["text"])["text"].to_pylist()]
        offsets = np.concatenate([[0], np.cumsum([len(one) for one in sets])]).astype(np.int64)
        np.save(path, similar_sets(np.concatenate(sets), offsets, threshold))
    return np.load(path)


def similar_sets(hashes: NDArray[np.uint64], offsets: NDArray[np.int64], threshold: float) -> NDArray[np.int64]:
    """Pairs (earlier, later) of sets hashes[offsets[i] : offsets[i + 1]], each sorted, that are so similar."""
    _, numbers, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    places = np.argsort(np.argsort(counts, kind="stable"), kind="stable")  # rare shingles first
    order = places[numbers]
    prefix, owners = _prefixes(order, offsets, threshold)
    by_shingle = np.argsort(prefix, kind="stable")
    candidates = _sharing(prefix[by_shingle], owners[by_shingle], len(offsets) - 1)
    pairs = np.unique(candidates, axis=0) if len(candidates) else candidates
    return pairs[_jaccard(hashes, offsets, pairs) >= threshold]


def _shingles(text: str) -> NDArray[np.uint64]:
    words = _WORD.findall(text.lower())
    runs = {" ".join(words[i : i + 5]) for i in range(max(len(words) - 4, min(len(words), 1)))}
    hashes = b"".join(blake2b(run.encode(), digest_size=8).digest() for run in runs)
    return np.sort(np.frombuffer(hashes, np.uint64))


@njit
def _prefixes(order, offsets, threshold):
    prefix, owners = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    end = 0
    for one in range(len(offsets) - 1):
        size = offsets[one + 1] - offsets[one]
        length = size - int(np.ceil(threshold * size - 1e-9)) + 1
        if size > 0:
            prefix[end : end + length] = np.sort(order[offsets[one] : offsets[one + 1]])[:length]
            owners[end : end + length] = one
            end += length
    return prefix[:end], owners[:end]


@njit
def _sharing(prefix, owners, documents):
    """Pairs of owners of equal entries; those found for one shingle already are mostly passed over."""
    found = np.empty((1 << 20, 2), np.int64)
    last = np.full(documents, -1, np.int64)
    count = begin = 0
    for place in range(len(prefix)):
        if prefix[place] != prefix[begin]:
            begin = place
        for earlier in range(begin, place):
            a, b = owners[earlier], owners[place]
            if last[b] == a:
                continue
            last[b] = a
            if count == len(found):
                larger = np.empty((2 * count, 2), np.int64)
                larger[:count] = found
                found = larger
            found[count, 0], found[count, 1] = min(a, b), max(a, b)
            count += 1
    return found[:count]


@njit
def _jaccard(hashes, offsets, pairs):
    found = np.zeros(len(pairs))
    for pair in range(len(pairs)):
        x, x_end = offsets[pairs[pair, 0]], offsets[pairs[pair, 0] + 1]
        y, y_end = offsets[pairs[pair, 1]], offsets[pairs[pair, 1] + 1]
        total, shared = x_end - x + y_end - y, 0
        while x < x_end and y < y_end:
            if hashes[x] == hashes[y]:
                shared += 1
                x += 1
                y += 1
            elif hashes[x] < hashes[y]:
                x += 1
            else:
                y += 1
        found[pair] = shared / (total - shared) if total > 0 else 0.0
    return found
