"""Selection: the documents that bring training closest to a target set, and scores by the quality classifier.

GOT-D (Kang et al. 2024, arXiv 2405.02774): before a short fine-tuning, the best documents are not those most like
the target, but those that pull the distribution a model was trained on towards it. The gradient of the
optimal-transport distance from the candidates to the target, with respect to a candidate's weight, is its dual
potential less the mean of the others'. A lower gradient is better.

DSIR (Xie et al. 2023, arXiv 2302.03169): a bag of hashed words and word pairs for each of the two sets. The weight of a
document is the ratio of its probabilities under them, and documents are drawn without replacement by these weights.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from trivium.corpus.config import SelectionConfig
from trivium.corpus.document import Document
from trivium.corpus.kernels.hashed import counts_matrix, hashed_ngrams
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.publish.output import write_results
from trivium.corpus.read.files import Input
from trivium.corpus.read.inputs import as_read_at, documents_at
from trivium.corpus.select.classifier import Classifier
from trivium.corpus.select.sinkhorn import Blocks, Matrix, Vector, sinkhorn
from trivium.corpus.steps import Drop, Reject, Tally, noted
from trivium.errors import DataError
from trivium.seeds import generator_for, seed_for

NOT_CHOSEN = "not among the chosen share"
_LONGEST = 2  # words in a feature
_SCORED_AT_ONCE = 512  # documents


def choose_documents(config: SelectionConfig, source: Input, target: Input, out: Path, *, seed: int) -> dict[str, Any]:
    """Write the chosen documents at `source`, best first, with `selection` (value, rank) in their metadata."""
    read, tally = Tally("read"), Tally(f"selection by {config.method}")
    pool = list(documents_at(source, read.passed_over))
    wanted = [document.text for document in as_read_at(target)]
    chosen, values = select([d.id for d in pool], [d.text for d in pool], wanted, config, seed=seed)
    for document in pool:
        read.keep(document)

    def results() -> Iterator[Document | Reject]:
        for rank, number in enumerate(chosen):
            document = noted(pool[number], selection={"value": float(values[number]), "rank": rank})
            tally.keep(document)
            yield document
        for number in sorted({*range(len(pool))}.difference(chosen)):
            tally.drop(pool[number], Drop(NOT_CHOSEN, "selection.fraction=1"))
            yield Reject(noted(pool[number], selection={"value": float(values[number])}), tally.step, NOT_CHOSEN)

    return write_results(results(), out, [read, tally])


def texts_drawn(source: Input, most: int, *, seed: int) -> list[str]:
    """Return the texts of `most` documents at `source`, drawn uniformly, in their order; all if there are no more.

    The source is read twice. Memory holds the drawn texts, and eight bytes for each document.
    """
    count = sum(1 for _ in as_read_at(source))
    chosen = np.ones(count, dtype=bool)
    if count > most:
        chosen[generator_for(seed, "texts drawn").permutation(count)[most:]] = False
    return [document.text for document, one in zip(as_read_at(source), chosen, strict=True) if one]


def score_documents(model: Path, source: Input, out: Path) -> dict[str, Any]:
    """Write documents at `source` with their `classifier_score`. Return {"funnel": …, "scores": {quantile: score}}."""
    classifier = Classifier.load(model)
    tally = Tally("classifier score")
    values: list[float] = []

    def results() -> Iterator[Document]:
        left = documents_at(source)
        while documents := list(islice(left, _SCORED_AT_ONCE)):
            scores = classifier.scores([document.text for document in documents]).tolist()
            values.extend(scores)
            for document, value in zip(documents, scores, strict=True):
                result = noted(document, classifier_score=round(value, 4))
                tally.keep(result)
                yield result

    written = write_results(results(), out, [tally])
    quantiles = {"5 %": 0.05, "median": 0.5, "95 %": 0.95}
    scores = {name: round(float(np.quantile(values, q)), 4) for name, q in quantiles.items()} if values else {}
    return {**written, "scores": scores}


def select(
    ids: Sequence[str], texts: Sequence[str], target: Sequence[str], config: SelectionConfig, *, seed: int
) -> tuple[list[int], Vector]:
    """Return the numbers of the chosen candidates, best first, and the value of every candidate; higher is better.

    `ids` name the candidates. The draw of `importance` depends on them, not on the order of the candidates.
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


def ngram_counts(texts: Sequence[str], *, bits: int) -> sp.csr_array:
    """Return how often each hashed word or word pair occurs in each text: [texts, 2^bits]."""
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


def transport_gradient(pool: sp.csr_array, target: sp.csr_array, config: SelectionConfig) -> Vector:
    """Return the gradient of the distance to the target by each candidate's weight [N], given n-gram counts."""
    idf = inverse_document_frequency(pool, target)
    x, y = tf_idf(pool, idf), tf_idf(target, idf)
    blocks = cosine_blocks(x, y, config.batch)
    mean = sum(float(costs.sum()) for _, costs in blocks()) / (x.shape[0] * y.shape[0])
    a, b = (np.full(points.shape[0], 1.0 / points.shape[0]) for points in (x, y))
    transport = sinkhorn(
        blocks, a, b, epsilon=config.epsilon * max(mean, 1e-9), tolerance=config.tolerance, iterations=config.iterations
    )
    return calibrated(transport.f)


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
    totals = (np.asarray(counts.sum(axis=0)).ravel() + 1.0 for counts in (target, pool))
    p, q = (np.log(total / total.sum()) for total in totals)
    return np.asarray(pool @ (p - q))


def gumbel(ids: Sequence[str], *, seed: int) -> NDArray[np.float64]:
    """Return a Gumbel number for each id. The top of log weights plus these numbers is a draw without replacement."""
    uniform = np.array([((seed_for(seed, "selection", i) >> 10) + 0.5) / 2**53 for i in ids])
    return np.asarray(-np.log(-np.log(uniform)))
