"""Every pair of documents with a Jaccard similarity of at least 0.8, by brute force: no hashing of signatures.

Shingle sets are built here in plain Python (words lower-cased by str.lower, 64-bit blake2b of five of them), so
that nothing is shared with what is judged. Pairs whose sizes differ too much for the similarity are passed over,
and a comparison ends once too many shingles differ: both are exact.
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
        sizes = np.array([len(one) for one in sets])
        order = np.argsort(sizes, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(sizes[order])]).astype(np.int64)
        pairs = _compare(np.concatenate([sets[i] for i in order]), offsets, threshold)
        np.save(path, np.sort(order[pairs], axis=1))
    return np.load(path)


def _shingles(text: str) -> NDArray[np.uint64]:
    words = _WORD.findall(text.lower())
    runs = {" ".join(words[i : i + 5]) for i in range(max(len(words) - 4, min(len(words), 1)))}
    hashes = b"".join(blake2b(run.encode(), digest_size=8).digest() for run in runs)
    return np.sort(np.frombuffer(hashes, np.uint64))


@njit
def _compare(hashes, offsets, threshold):
    found = np.empty((1024, 2), np.int64)
    count = 0
    documents = len(offsets) - 1
    for a in range(documents):
        a_size = offsets[a + 1] - offsets[a]
        for b in range(a + 1, documents):  # sizes rise
            b_size = offsets[b + 1] - offsets[b]
            if a_size < threshold * b_size:
                break
            total = a_size + b_size
            may_differ = total - 2 * int(np.ceil(threshold / (1 + threshold) * total - 1e-9))
            x, y, differ = offsets[a], offsets[b], 0
            while x < offsets[a + 1] and y < offsets[b + 1] and differ <= may_differ:
                if hashes[x] == hashes[y]:
                    x += 1
                    y += 1
                elif hashes[x] < hashes[y]:
                    x += 1
                    differ += 1
                else:
                    y += 1
                    differ += 1
            differ += offsets[a + 1] - x + offsets[b + 1] - y
            if a_size > 0 and differ <= may_differ:
                if count == len(found):
                    larger = np.empty((2 * count, 2), np.int64)
                    larger[:count] = found
                    found = larger
                found[count, 0], found[count, 1] = a, b
                count += 1
    return found[:count]
