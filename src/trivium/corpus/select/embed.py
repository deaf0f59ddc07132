"""Documents as points: hashed TF-IDF of words and word pairs."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from trivium.corpus.kernels.hashed import counts_matrix, hashed_ngrams
from trivium.corpus.kernels.texts import texts_of

_LONGEST = 2  # words in a feature


def ngram_counts(texts: Sequence[str], *, bits: int) -> sp.csr_array:
    """How often each hashed word or word pair stands in each text: [texts, 2^bits]."""
    return counts_matrix(*hashed_ngrams(texts_of(texts), longest=_LONGEST, bits=bits), bits=bits)


def tf_idf(counts: sp.csr_array, idf: NDArray[np.float64]) -> sp.csr_array:
    """Rows of length 1: logarithmic counts times inverse document frequency; a text without words stays 0."""
    points = counts.copy()
    points.data = np.log1p(points.data)
    points = points @ sp.diags_array(idf)
    lengths = np.sqrt((points.multiply(points)).sum(axis=1))
    return sp.csr_array(sp.diags_array(1.0 / np.where(lengths > 0, lengths, 1.0)) @ points)


def inverse_document_frequency(*counts: sp.csr_array) -> NDArray[np.float64]:
    """log((1 + documents) / (1 + documents with the feature)) + 1 over all of `counts`."""
    documents = sum(c.shape[0] for c in counts)
    having = sum(np.bincount(c.indices, minlength=c.shape[1]) for c in counts)
    return np.asarray(np.log((1 + documents) / (1 + having)) + 1.0)
