"""Choosing documents as verbs: those nearest to a target set, and scores by the classifier."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trivium.corpus.config import SelectionConfig
from trivium.corpus.document import Document
from trivium.corpus.files import Input
from trivium.corpus.publish.output import write_results
from trivium.corpus.read.inputs import as_read_at, documents_at
from trivium.corpus.select.classifier import Classifier
from trivium.corpus.select.select import select
from trivium.corpus.steps import Drop, Reject, Tally, noted
from trivium.seeds import generator_for

_TOGETHER = 512  # documents scored at once
NOT_CHOSEN = "not among the chosen share"


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
        left = np.ones(len(pool), dtype=bool)
        left[chosen] = False
        for number in np.flatnonzero(left).tolist():
            tally.drop(pool[number], Drop(NOT_CHOSEN, "selection.fraction=1"))
            yield Reject(noted(pool[number], selection={"value": float(values[number])}), tally.step, NOT_CHOSEN)

    return write_results(results(), out, [read, tally])


def texts_drawn(source: Input, most: int, *, seed: int) -> list[str]:
    """Return the texts of `most` documents at `source`, drawn uniformly, in their order; all if there are no more.

    The source is read twice. Memory holds the texts that are drawn, and eight bytes for each document.
    """
    count = sum(1 for _ in as_read_at(source))
    chosen = np.ones(count, dtype=bool)
    if count > most:
        chosen[generator_for(seed, "texts drawn").permutation(count)[most:]] = False
    return [document.text for document, one in zip(as_read_at(source), chosen, strict=True) if one]


def score_documents(model: Path, source: Input, out: Path) -> dict[str, Any]:
    """Write documents at `source` with its `classifier_score`. Return {"funnel": …, "scores": {quantile: score}}."""
    classifier = Classifier.load(model)
    tally = Tally("classifier score")
    found: list[float] = []

    def results() -> Iterator[Document]:
        together: list[Document] = []
        for document in documents_at(source):
            together.append(document)
            if len(together) == _TOGETHER:
                yield from _scored(together, classifier, found, tally)
                together.clear()
        yield from _scored(together, classifier, found, tally)

    written = write_results(results(), out, [tally])
    quantiles = {"5 %": 0.05, "median": 0.5, "95 %": 0.95}
    scores = {name: round(float(np.quantile(found, q)), 4) for name, q in quantiles.items()} if found else {}
    return {**written, "scores": scores}


def _scored(documents: list[Document], classifier: Classifier, found: list[float], tally: Tally) -> Iterator[Document]:
    scores = classifier.scores([document.text for document in documents]).tolist() if documents else []
    found += scores
    for document, value in zip(documents, scores, strict=True):
        result = noted(document, classifier_score=round(value, 4))
        tally.keep(result)
        yield result
