"""The paper's classifier of high-quality text against crawl, and sampling by its score.

MT-NLG (section 3.1) trained a linear model on word pairs and kept a document if pareto(alpha) > 1 - score, with
alpha = 3 (GPT-3: 9). NumPy's pareto is the Lomax distribution, so the probability of keeping is (2 - score)^-alpha:
1 at a score of 1, 0.125 at 0. Here the number is drawn from the document's id, so it is the same in every run, order
and process.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from trivium.corpus.config import ClassifierConfig
from trivium.corpus.document import Document
from trivium.corpus.kernels.hashed import Buckets, hashed_ngrams, logistic_epoch, logistic_scores
from trivium.corpus.kernels.texts import Offsets, texts_of
from trivium.corpus.steps import Drop, Keep, Step, Verdict, measured_step, noted
from trivium.errors import ConfigError, DataError
from trivium.provenance import file_sha256
from trivium.seeds import generator_for, seed_for
from trivium.untrusted import check_regular

FORMAT = "trivium-classifier-1"
FILE = "classifier.npz"  # in the folder that training writes
_TEXTS_PER_BATCH = 1 << 10


@dataclass(frozen=True)
class Classifier:
    """A linear model on hashed word n-grams. `weights`: [2^bits + 1] float32, the bias last."""

    weights: NDArray[np.float32]
    longest: int
    most_words: int

    @property
    def bits(self) -> int:
        """Binary logarithm of the number of buckets."""
        return (len(self.weights) - 1).bit_length() - 1

    def scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the probability, for each text, that it is of the high-quality kind."""
        offsets, buckets = _features(texts, self.longest, self.bits, self.most_words)
        found = np.empty(len(texts))
        logistic_scores(offsets, buckets, self.weights, found)
        return found

    def save(self, path: Path) -> None:
        """Write the model as one .npz file of plain arrays."""
        shape = np.array([self.longest, self.most_words])
        with open(path, "wb") as file:
            np.savez(file, format=np.array(FORMAT), weights=self.weights, shape=shape)

    @staticmethod
    def load(path: Path) -> "Classifier":
        """Read a model that `save` wrote, from its file or folder. Raises DataError if it is not a model."""
        try:
            check_regular(model_file(path))
            with np.load(model_file(path), allow_pickle=False) as file:
                if str(file["format"]) != FORMAT:
                    raise ValueError(f"its format is {file['format']}, not {FORMAT}")
                longest, most_words = map(int, file["shape"])
                return Classifier(file["weights"].astype(np.float32), longest, most_words)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
            raise DataError(
                f"{path} is no quality classifier: {error}; train one with `trivium corpus step train-classifier` "
                f"and give its folder"
            ) from None


def model_file(path: Path) -> Path:
    """Return the file of a model, given that file or the folder that training wrote."""
    return path / FILE if path.is_dir() else path


class Report(NamedTuple):
    """The quality of a classifier on documents that it was not trained on."""

    trained_on: int
    held_out: int
    accuracy: float
    auc: float

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return self._replace(accuracy=round(self.accuracy, 4), auc=round(self.auc, 4))._asdict()


def train(
    positives: Sequence[str], negatives: Sequence[str], config: ClassifierConfig, *, seed: int
) -> tuple[Classifier, Report]:
    """Train a classifier on equally many `positives` and `negatives`. Return it with its report on held-out ones."""
    most = min(len(positives), len(negatives), config.documents)
    if most < 2:
        raise DataError(
            f"a classifier needs at least 2 documents of each kind, and there are {len(positives)} of high quality "
            f"and {len(negatives)} of the crawl; give more"
        )
    chosen = [
        *(positives[n] for n in _sample(len(positives), most, seed, "positives")),
        *(negatives[n] for n in _sample(len(negatives), most, seed, "negatives")),
    ]
    labels = np.repeat(np.array([1, 0], np.float32), most)
    offsets, buckets = _features(chosen, config.ngram, config.bits, config.words)
    order = generator_for(seed, "classifier", "order").permutation(len(chosen))
    held = max(1, round(config.heldout_fraction * len(chosen)))
    weights = np.zeros((1 << config.bits) + 1, np.float32)
    squares = np.zeros_like(weights)
    for epoch in range(config.epochs):
        turn = generator_for(seed, "classifier", "epoch", epoch).permutation(order[held:])
        logistic_epoch(offsets, buckets, labels, turn, weights, squares, config.rate)
    classifier = Classifier(weights, config.ngram, config.words)
    found = np.empty(len(chosen))
    logistic_scores(offsets, buckets, weights, found)
    kept_out = order[:held]
    accuracy = float(np.mean((found[kept_out] > 0.5) == (labels[kept_out] > 0.5)))
    report = Report(len(chosen) - held, held, accuracy, auc(found[kept_out], labels[kept_out]))
    return classifier, report


def auc(scores: NDArray[np.float64], labels: NDArray[np.float32]) -> float:
    """Return the probability that a positive scores higher than a negative, with ties as half; nan without both."""
    positive = labels > 0.5
    p, n = int(positive.sum()), int((~positive).sum())
    if p == 0 or n == 0:
        return float("nan")
    _, values, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[values]  # equal scores have the mean of their ranks
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * n))


def is_kept(identity: str, score: float, config: ClassifierConfig, *, seed: int) -> bool:
    """Return whether a document is kept: by the threshold if there is one, else by the Pareto draw."""
    if config.threshold is not None:
        return score >= config.threshold
    uniform = (seed_for(seed, "classifier", "keep", identity) >> 10) / 2**53
    pareto: float = (1.0 - uniform) ** (-1.0 / config.alpha) - 1.0  # NumPy's pareto as a function of a uniform number
    return bool(pareto > 1.0 - score)


def trained_step(config: ClassifierConfig, *, seed: int) -> Step:
    """Return the step that keeps documents by the score of the config's model, and adds `classifier_score` to their
    metadata. Raises ConfigError if the config names no model.
    """
    if config.model is None:
        raise ConfigError(
            "curate.classifier.model is not set, but curate.filters names 'classifier': train one with "
            "`trivium corpus step train-classifier` and give its folder"
        )
    path = model_file(Path(config.model))
    known = file_sha256(path) if path.is_file() else ""
    model = _model(config.model, known)

    def verdict(document: Document, score: float) -> Verdict:
        if not is_kept(document.id, score, config, seed=seed):
            return Drop("classified as crawl", "classifier.threshold=0")
        return Keep(noted(document, classifier_score=round(score, 4)))

    def scores(texts: Sequence[str]) -> list[float]:
        found: list[float] = model.scores(texts).tolist() if texts else []
        return found

    return measured_step("classifier", scores, verdict)


@lru_cache(maxsize=1)  # read once in a process, not once for each part, unless its sha256 changes
def _model(path: str, sha256: str) -> Classifier:
    return Classifier.load(Path(path))


def _sample(count: int, most: int, seed: int, name: str) -> list[int]:
    if count == most:
        return list(range(count))
    chosen: list[int] = np.sort(generator_for(seed, "classifier", name).permutation(count)[:most]).tolist()
    return chosen


def _features(texts: Sequence[str], longest: int, bits: int, words: int) -> tuple[Offsets, Buckets]:
    parts = [
        hashed_ngrams(texts_of(texts[at : at + _TEXTS_PER_BATCH]), longest=longest, bits=bits, most_words=words)
        for at in range(0, len(texts), _TEXTS_PER_BATCH)
    ]
    sizes = [np.diff(offsets) for offsets, _ in parts]
    return np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes])), np.concatenate([b for _, b in parts])
