"""The first use of a kernel compiles it, once per machine; this does it before anything is timed or forked."""

import numpy as np

from trivium.corpus.clean import tidy
from trivium.corpus.kernels.hashed import hashed_ngrams, logistic_scores
from trivium.corpus.kernels.measures import measures
from trivium.corpus.kernels.ngrams import are_there, find_ngrams, in_characters, ngram_index, ngrams_of
from trivium.corpus.kernels.personal import may_be_personal
from trivium.corpus.kernels.repeats import repeats
from trivium.corpus.kernels.shingles import (
    band_keys,
    jaccard_of_pairs,
    pairs_in_band,
    shingle_sets,
    signatures,
)
from trivium.corpus.kernels.texts import joined, texts_of
from trivium.corpus.kernels.words import text_keys
from trivium.corpus.page_blocks import page_of


def warm_up() -> None:
    """Run every kernel on two short texts: seconds on a new machine, half a second from the compiled cache."""
    texts = texts_of(["one two three four", "five six"])
    text_keys(texts)
    keys = band_keys(signatures(texts, size=2, multipliers=np.ones((2, 4), np.uint32)), bands=2, rows=2)
    pairs = pairs_in_band(keys[0], chain=1)
    sets = shingle_sets(texts, size=2)
    jaccard_of_pairs(sets, sets, pairs)
    ngrams = ngrams_of(texts)
    found = find_ngrams(texts, ngram_index(ngrams))
    are_there(texts, found, texts, ngrams)
    in_characters(texts, found)
    tidy("one  two…")
    measures(joined(["one two"]), short=1)
    repeats(joined(["one two"]), tops=1, repeated=1)
    page_of("<p>one</p>")
    may_be_personal(texts)
    logistic_scores(*hashed_ngrams(texts, longest=2, bits=4), np.zeros(16, np.float32), np.zeros(2))
