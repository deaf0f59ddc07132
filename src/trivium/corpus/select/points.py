"""Documents as points: hashed words and word pairs by TF-IDF, or the vectors of an encoder, and their distances.

Every point has length 1, or 0 for a text without words. The distance of two points is 1 - cosine, which is half the
squared Euclidean distance of points of length 1.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from trivium.corpus.kernels.hashed import counts_matrix, hashed_ngrams
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.work import mapped
from trivium.errors import DataError

Vector = NDArray[np.float64]
Dense = NDArray[np.float32]
Points: TypeAlias = sp.csr_array | Dense

_MAX_FEATURE_WORDS = 2
_COUNTED_AT_ONCE = 8192  # texts


class Part(NamedTuple):
    """Some documents of a set: their texts, their numbers in the set, 0-based, and the size of the set."""

    texts: Sequence[str]
    numbers: NDArray[np.int64]
    size: int


Embed = Callable[[Sequence[Part]], list[Points]]
"""Returns the points of each part. The parts are of different sets, which are embedded together."""


def whole(texts: Sequence[str]) -> Part:
    """Return the part that is a full set."""
    return Part(texts, np.arange(len(texts)), len(texts))


def hashed_words(bits: int) -> Embed:
    """Embed texts as TF-IDF of words and word pairs, hashed into 2^bits buckets."""

    def embed(parts: Sequence[Part]) -> list[Points]:
        counts = [ngram_counts(part.texts, bits=bits) for part in parts]
        idf = inverse_document_frequency(*counts)
        return [tf_idf(some, idf) for some in counts]

    return embed


def encoded_by(encode: Callable[[Sequence[str]], Dense]) -> Embed:
    """Embed texts with a function of texts to vectors [texts, dimensions]."""
    return lambda parts: [unit_rows(encode(part.texts)) for part in parts]


def vectors_in(path: Path) -> Embed:
    """Take vectors from an .npy file, whose rows are those of all documents of the first set, the second, and so on.

    Raises DataError if the file is no matrix of finite numbers or has another number of rows.
    """

    def embed(parts: Sequence[Part]) -> list[Points]:
        vectors = _matrix(path)
        sizes = [part.size for part in parts]
        if len(vectors) != sum(sizes):
            said = " + ".join(f"{size:,}" for size in sizes)
            raise DataError(
                f"{path} has {len(vectors):,} rows, and there are {said} documents; write one row for each document of "
                "IN, then of --target, then of --from, in the order in which they are read"
            )
        points: list[Points] = []
        for part, end in zip(parts, np.cumsum(sizes), strict=True):
            rows = np.asarray(vectors[end - part.size + part.numbers], dtype=np.float32)
            if not (finite := np.isfinite(rows).all(axis=1)).all():
                row = end - part.size + part.numbers[int(np.argmin(finite))]
                raise DataError(f"{path}: row {row:,} (0-based) has numbers that are not finite in float32; replace it")
            points.append(unit_rows(rows))
        return points

    return embed


def _matrix(path: Path) -> NDArray[np.generic]:
    try:
        found = mapped(path)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"--embedding {path} is no .npy file: {error}; write one with numpy.save") from error
    if found.ndim != 2 or found.dtype.kind != "f":
        raise DataError(
            f"--embedding {path} has shape {found.shape} and type {found.dtype}; save a matrix of floats, one row for "
            "each document"
        )
    return found


def unit_rows(rows: Dense) -> Dense:
    """Return the rows scaled to length 1; rows of zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def ngram_counts(texts: Sequence[str], *, bits: int) -> sp.csr_array:
    """Return how often each hashed word or word pair occurs in each text: [texts, 2^bits], float32."""
    batches = [texts[n : n + _COUNTED_AT_ONCE] for n in range(0, len(texts), _COUNTED_AT_ONCE)]
    counted = (
        counts_matrix(*hashed_ngrams(texts_of(some), longest=_MAX_FEATURE_WORDS, bits=bits), bits=bits)
        for some in batches
    )
    return sp.csr_array(sp.vstack([some.astype(np.float32) for some in counted], format="csr"))


def tf_idf(counts: sp.csr_array, idf: Vector) -> sp.csr_array:
    """Return logarithmic counts times inverse document frequency, rows of length 1; a text without words stays 0."""
    data = np.log1p(counts.data) * idf.astype(np.float32)[counts.indices]
    texts = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    lengths = np.sqrt(np.bincount(texts, weights=data.astype(np.float64) ** 2, minlength=counts.shape[0]))
    return sp.csr_array((data / lengths.astype(np.float32)[texts], counts.indices, counts.indptr), shape=counts.shape)


def inverse_document_frequency(*counts: sp.csr_array) -> Vector:
    """Return log((1 + documents) / (1 + documents with the feature)) + 1 over all of `counts`."""
    documents = sum(c.shape[0] for c in counts)
    having = sum(np.bincount(c.indices, minlength=c.shape[1]) for c in counts)
    return np.asarray(np.log((1 + documents) / (1 + having)) + 1.0)


def distances(x: Points, y: Points, batch: int) -> Iterator[tuple[slice, Dense]]:
    """Yield the distances between rows of `x` and all rows of `y`, for `batch` rows of `x` at a time."""
    columns = sp.csr_array(y.T) if sp.issparse(y) else y.T
    for first in range(0, x.shape[0], batch):
        rows = slice(first, min(first + batch, x.shape[0]))
        products = x[rows] @ columns
        yield rows, 1 - (products if isinstance(products, np.ndarray) else products.toarray())
