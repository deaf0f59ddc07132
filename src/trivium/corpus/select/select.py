"""Selects the candidates that bring training closest to a target: GOT-D by transport, DSIR by importance.

GOT-D (Kang et al. 2024, arXiv 2405.02774): before a short fine-tuning, the best documents are not those most like
the target, but those that pull the distribution a model was trained on towards it. The gradient of the
optimal-transport distance from the candidates to the target, with respect to a candidate's weight, is its dual
potential less the mean of the others'; the lower, the more it helps.

DSIR (Xie et al. 2023, arXiv 2302.03169): a bag of hashed words and word pairs for each of the two sets; a document
weighs the ratio of its probabilities under them, and documents are drawn without replacement by those weights.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from trivium.corpus.config import SelectionConfig
from trivium.corpus.kernels.hashed import counts_matrix, hashed_ngrams
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.select.sinkhorn import Blocks, Matrix, Vector, sinkhorn
from trivium.errors import DataError
from trivium.seeds import seed_for

_LONGEST = 2  # words in a feature


def ngram_counts(texts: Sequence[str], *, bits: int) -> sp.csr_array:
    """Return how often each hashed word or word pair stands in each text: [texts, 2^bits]."""
    return counts_matrix(*hashed_ngrams(texts_of(texts), longest=_LONGEST, bits=bits), bits=bits)


def tf_idf(counts: sp.csr_array, idf: NDArray[np.float64]) -> sp.csr_array:
    """Return logarithmic counts times inverse document frequency, rows of length 1; a text without words stays 0."""
    points = counts.copy()
    points.data = np.log1p(points.data)
    points = points @ sp.diags_array(idf)
    lengths = np.sqrt((points.multiply(points)).sum(axis=1))
    return sp.csr_array(sp.diags_array(1.0 / np.where(lengths > 0, lengths, 1.0)) @ points)


def inverse_document_frequency(*counts: sp.csr_array) -> NDArray[np.float64]:
    """Return log((1 + documents) / (1 + documents with the feature)) + 1 over all of `counts`."""
    documents = sum(c.shape[0] for c in counts)
    having = sum(np.bincount(c.indices, minlength=c.shape[1]) for c in counts)
    return np.asarray(np.log((1 + documents) / (1 + having)) + 1.0)


def select(
    ids: Sequence[str], texts: Sequence[str], target: Sequence[str], config: SelectionConfig, *, seed: int
) -> tuple[list[int], Vector]:
    """Return the numbers of the chosen candidates, best first, and the value of every candidate; higher is better.

    `ids` name the candidates: the draw of `importance` depends on them, not on the order of the candidates.
    """
    if not texts or not target:
        raise DataError(
            f"curate.selection: {len(texts)} candidates and {len(target)} target documents; give some of both"
        )
    pool, wanted = (ngram_counts(some, bits=config.bits) for some in (texts, target))
    if config.method == "transport":
        values = -transport_gradient(pool, wanted, config)
        ranking = values
    else:
        values = importance(pool, wanted)
        ranking = values + gumbel(ids, seed=seed)
    most = max(1, round(config.fraction * len(texts)))
    order = sorted(range(len(texts)), key=lambda n: (-ranking[n], ids[n]))
    return order[:most], values


def transport_gradient(pool: sp.csr_array, target: sp.csr_array, config: SelectionConfig) -> Vector:
    """Return the gradient of the distance to the target by each candidate's weight [N], given n-gram counts."""
    idf = inverse_document_frequency(pool, target)
    x, y = tf_idf(pool, idf), tf_idf(target, idf)
    blocks = cosine_blocks(x, y, config.batch)
    mean = sum(float(costs.sum()) for _, costs in blocks()) / (x.shape[0] * y.shape[0])
    a, b = (np.full(points.shape[0], 1.0 / points.shape[0]) for points in (x, y))
    found = sinkhorn(
        blocks, a, b, epsilon=config.epsilon * max(mean, 1e-9), tolerance=config.tolerance, iterations=config.iterations
    )
    return calibrated(found.f)


def calibrated(f: Vector) -> Vector:
    """Return the derivative of the distance as one weight grows and all others shrink alike: f_i less their mean."""
    if len(f) == 1:
        return np.zeros(1)
    return np.asarray(f - (f.sum() - f) / (len(f) - 1))


def cosine_blocks(x: sp.csr_array, y: sp.csr_array, batch: int) -> Blocks:
    """Return blocks of 1 - cosine between rows of length 1, which are computed for each batch of rows of `x`."""
    columns = sp.csc_array(y.T)

    def blocks() -> Iterator[tuple[slice, Matrix]]:
        for first in range(0, x.shape[0], batch):
            rows = slice(first, min(first + batch, x.shape[0]))
            yield rows, 1.0 - (x[rows] @ columns).toarray()

    return blocks


def importance(pool: sp.csr_array, target: sp.csr_array) -> Vector:
    """Return log p(document | target) - log p(document | candidates) of bags of n-grams, one added to each count."""
    p, q = (_bag(counts) for counts in (target, pool))
    return np.asarray(pool @ (p - q))


def gumbel(ids: Sequence[str], *, seed: int) -> NDArray[np.float64]:
    """Return a Gumbel number for each id: adding it to log weights and taking the top draws without replacement."""
    uniform = np.array([((seed_for(seed, "selection", i) >> 10) + 0.5) / 2**53 for i in ids])
    return np.asarray(-np.log(-np.log(uniform)))


def _bag(counts: sp.csr_array) -> Vector:
    total = np.asarray(counts.sum(axis=0)).ravel() + 1.0
    return np.asarray(np.log(total / total.sum()))
