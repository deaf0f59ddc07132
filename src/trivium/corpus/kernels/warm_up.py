"""Compiles every kernel, once per user and machine, before any work is timed, forked or run in parallel."""

from collections.abc import Callable

import numpy as np

from trivium.corpus.clean.page_blocks import page_of
from trivium.corpus.clean.tidy import tidy
from trivium.corpus.kernels.cache import CACHE, compiling
from trivium.corpus.kernels.hashed import hashed_ngrams, logistic_scores
from trivium.corpus.kernels.measures import measures
from trivium.corpus.kernels.ngrams import find_ngrams, ngram_index, ngrams_of
from trivium.corpus.kernels.repeats import repeats
from trivium.corpus.kernels.shingles import band_keys, jaccard_of_pairs, pairs_in_band, shingle_sets, signatures
from trivium.corpus.kernels.texts import joined, texts_of
from trivium.corpus.kernels.words import text_keys
from trivium.progress import Progress, silent

NOTE = "compiling kernels, once: about 30 s"


def compile_once(progress: Progress = silent) -> None:
    """Compile every kernel, unless the cache has it or another process is compiling it now."""
    with compiling(CACHE, progress) as missing:
        if missing:
            for done, run in enumerate(_RUNS):
                progress(done, len(_RUNS), NOTE)
                run()


def warm_up(progress: Progress = silent) -> None:
    """Compile every kernel if necessary, and load the compiled code into this process, which takes half a second."""
    compile_once(progress)
    for run in _RUNS:
        run()


def _find_similar() -> None:
    texts = texts_of(_TEXTS)
    text_keys(texts)
    keys = band_keys(signatures(texts, size=2, multipliers=np.ones((2, 4), np.uint32)), bands=2, rows=2)
    sets = shingle_sets(texts, size=2)
    jaccard_of_pairs(sets, sets, pairs_in_band(keys[0], chain=1))


def _find_ngrams() -> None:
    texts = texts_of(_TEXTS)
    find_ngrams(texts, ngram_index(ngrams_of(texts)))


def _score() -> None:
    texts = texts_of(_TEXTS)
    logistic_scores(*hashed_ngrams(texts, longest=2, bits=4), np.zeros(16, np.float32), np.zeros(2))


_TEXTS = ["one two three four", "five six"]
_RUNS: tuple[Callable[[], object], ...] = (
    _find_similar,
    _find_ngrams,
    lambda: tidy("one  two…"),
    lambda: measures(joined(["one two"]), short=1),
    lambda: repeats(joined(["one two"]), tops=1, repeated=1),
    lambda: page_of("<p>one</p>"),
    _score,
)
