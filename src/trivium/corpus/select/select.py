"""Selection: the documents with which training comes closest to a target, and scores by the quality classifier.

GOT-D (Kang et al. 2024, arXiv 2405.02774): a model was trained on documents P, and is to be warmed up on a few others
before it is tuned on a target R. The best documents are not those most like R, which may be what the model knows
already. They are those that bring its effective training data (1 - λ) P + λ S closest to R. The value of a document x
is the derivative by λ of the optimal-transport distance from (1 - λ) P + λ x to R, at λ = 0; lower is better. With the
dual potential f it is f(x) less the mean of f over P.

DSIR (Xie et al. 2023, arXiv 2302.03169): a bag of hashed words and word pairs for each of the two sets. The weight of a
document is the ratio of its probabilities under them, and documents are drawn without replacement by these weights.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from trivium.corpus.config import SelectionConfig
from trivium.corpus.dedup.groups import keys_of_texts
from trivium.corpus.document import Document
from trivium.corpus.publish.output import write_results
from trivium.corpus.read.files import Input
from trivium.corpus.read.inputs import as_read_at, documents_at
from trivium.corpus.select.classifier import Classifier
from trivium.corpus.select.points import Embed, Part, Points, Vector, distances, hashed_words, ngram_counts, whole
from trivium.corpus.select.sinkhorn import sinkhorn, soft_minimum
from trivium.corpus.steps import Drop, Reject, Tally, noted
from trivium.errors import DataError
from trivium.seeds import generator_for, seed_for

NOT_CHOSEN = Drop("not among the chosen share")
OF_THE_TARGET = Drop("a document of the target")
REPEATED = Drop("the text of a better candidate")
_SCORED_AT_ONCE = 512  # documents
_LEAST_DEVIATION = 1e-6  # of costs, which are computed in fp32


class Inputs(NamedTuple):
    """The candidates, the target, and what the model was trained on; None: the candidates stand for it."""

    candidates: Input
    target: Input
    source: Input | None = None


def choose_documents(
    config: SelectionConfig, inputs: Inputs, out: Path, *, seed: int, embed: Embed | None = None
) -> dict[str, Any]:
    """Write the chosen candidates, best first, with `selection` (value, rank) in their metadata.

    A candidate with the text of a document of the target, or of a better candidate, is not chosen; case and
    punctuation do not count. embed: None for hashed words. Returns {"funnel": …, "characters": {set: median}}.
    """
    read, tally = Tally("read"), Tally(f"selection by {config.method}")
    pool = list(documents_at(inputs.candidates, read.passed_over))
    listed = {keys_of_texts([document.text])[0] for document in as_read_at(inputs.target)}
    target = draw(inputs.target, config.sample if config.method == "transport" else sys.maxsize, seed=seed)
    source = None if inputs.source is None else draw(inputs.source, config.sample, seed=seed)
    candidates = whole([document.text for document in pool])
    ranked, values = rank([d.id for d in pool], candidates, target, config, seed=seed, source=source, embed=embed)
    chosen, dropped = _chosen(ranked, candidates.texts, listed, most=max(1, round(config.fraction * len(pool))))
    for document in pool:
        read.keep(document)

    def results() -> Iterator[Document | Reject]:
        for place, number in enumerate(chosen):
            document = noted(pool[number], selection={"value": float(values[number]), "rank": place})
            tally.keep(document)
            yield document
        for number, drop in sorted(dropped.items()):
            tally.drop(pool[number], drop)
            yield Reject(noted(pool[number], selection={"value": float(values[number])}), tally.step, drop.reason)

    written = write_results(results(), out, [read, tally])
    lengths = np.array([len(text) for text in candidates.texts])
    sets = {"candidates": lengths, "chosen": lengths[chosen]}
    return {**written, "characters": {name: float(np.median(some)) for name, some in sets.items() if len(some)}}


def _chosen(
    ranked: Sequence[int], texts: Sequence[str], listed: set[bytes], *, most: int
) -> tuple[list[int], dict[int, Drop]]:
    """Return the numbers of the chosen candidates, best first, and why each of the others is not."""
    chosen: list[int] = []
    dropped: dict[int, Drop] = {}
    seen: set[bytes] = set()
    keys = keys_of_texts(texts)
    for number in ranked:
        key = keys[number]
        if key in listed:
            dropped[number] = OF_THE_TARGET
        elif key in seen:
            dropped[number] = REPEATED
        elif len(chosen) == most:
            dropped[number] = NOT_CHOSEN
        else:
            chosen.append(number)
            seen.add(key)
    return chosen, dropped


def draw(source: Input, most: int, *, seed: int) -> Part:
    """Return `most` documents at `source`, drawn uniformly, in their order; all if there are no more.

    The source is read twice. Memory holds the drawn texts, and eight bytes for each document.
    """
    count = sum(1 for _ in as_read_at(source))
    chosen = np.ones(count, dtype=bool)
    if count > most:
        chosen[generator_for(seed, "texts drawn").permutation(count)[most:]] = False
    texts = [document.text for document, one in zip(as_read_at(source), chosen, strict=True) if one]
    return Part(texts, np.flatnonzero(chosen), count)


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


def rank(
    ids: Sequence[str],
    candidates: Part,
    target: Part,
    config: SelectionConfig,
    *,
    seed: int,
    source: Part | None = None,
    embed: Embed | None = None,
) -> tuple[list[int], Vector]:
    """Return the numbers of the candidates, best first, and the value of each; higher is better.

    `ids` name the candidates. Draws depend on them, not on the order of the candidates.
    """
    given = {"candidates": candidates, "target": target, **({} if source is None else {"from": source})}
    if empty := [name for name, part in given.items() if not part.texts]:
        raise DataError(f"curate.selection: there are 0 documents in {' and '.join(empty)}; give at least one in each")
    if config.method == "transport":
        points = (embed or hashed_words(config.bits))(list(given.values()))
        before = points[0][drawn(ids, config.sample, seed=seed)] if source is None else points[2]
        values = -transport_gradient(points[0], points[1], before, config)
        ranking = values
    else:
        pool, wanted = (ngram_counts(part.texts, bits=config.bits) for part in (candidates, target))
        values = importance(pool, wanted)
        ranking = values + gumbel(ids, seed=seed)
    if config.method == "transport" and len(set(candidates.texts)) > 1 and not np.ptp(values) > 0:
        raise DataError(
            f"curate.selection: all {len(ids)} candidates have the same value, so that none resembles the target more "
            f"than another; give a target with words of the candidates, or vectors that differ"
        )
    return sorted(range(len(ids)), key=lambda n: (-ranking[n], ids[n])), values


def drawn(ids: Sequence[str], most: int, *, seed: int) -> NDArray[np.int64]:
    """Return the numbers of `most` documents, drawn uniformly by their ids; all if there are no more."""
    if len(ids) <= most:
        return np.arange(len(ids))
    places = np.array([seed_for(seed, "source of selection", i) for i in ids])
    return np.sort(np.argpartition(places, most)[:most])


def transport_gradient(candidates: Points, target: Points, source: Points, config: SelectionConfig) -> Vector:
    """Return the derivative of the distance from source to target as mass moves from the source to a candidate [N].

    The mass is taken from all points of the source alike. The dual potentials are those of source and target. The
    potential of a candidate follows from its distances to the target; it is that of an equal point of the source.
    """
    costs = np.concatenate([some for _, some in distances(source, target, config.batch)])
    epsilon = config.epsilon * max(float(costs.std(dtype=np.float64)), _LEAST_DEVIATION)
    a, b = (np.full(points.shape[0], 1.0 / points.shape[0]) for points in (source, target))
    transport = sinkhorn(costs, a, b, epsilon=epsilon, tolerance=config.tolerance, iterations=config.iterations)
    weighted = transport.g + epsilon * np.log(b)
    f = [soft_minimum(some, weighted, epsilon) for _, some in distances(candidates, target, config.batch)]
    return calibrated(np.concatenate(f), transport.f, a)


def calibrated(f: Vector, source: Vector, a: Vector) -> Vector:
    """Return potentials less the mean of those of the source, whose weights are `a`.

    Potentials are defined up to a constant; this difference is not. For a point of a source of n equal weights it is
    (n - 1) / n times its potential less the mean of all others (LAVA, arXiv 2305.00054).
    """
    return np.asarray(f - a @ source)


def importance(pool: sp.csr_array, target: sp.csr_array) -> Vector:
    """Return log p(document | target) - log p(document | candidates) of bags of n-grams, one added to each count."""
    totals = (np.asarray(counts.sum(axis=0)).ravel() + 1.0 for counts in (target, pool))
    p, q = (np.log(total / total.sum()) for total in totals)
    return np.asarray(pool @ (p - q))


def gumbel(ids: Sequence[str], *, seed: int) -> NDArray[np.float64]:
    """Return a Gumbel number for each id. The top of log weights plus these numbers is a draw without replacement."""
    uniform = np.array([((seed_for(seed, "selection", i) >> 10) + 0.5) / 2**53 for i in ids])
    return np.asarray(-np.log(-np.log(uniform)))
