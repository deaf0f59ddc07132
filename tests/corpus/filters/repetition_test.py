"""Laws of the repetition figures, against plain loops."""

from collections import Counter

import numpy as np
import pytest

from trivium.corpus.config import RepetitionConfig
from trivium.corpus.filters.repetition import (
    _codes,
    measure,
    repeated_ngram_characters,
    top_ngram_characters,
)
from trivium.seeds import generator_for


@pytest.mark.parametrize("seed", range(20))
def test_ngram_figures_equal_plain_counting(seed):
    generator = generator_for(seed, "repetition-test")
    words = [f"w{'x' * (i % 5)}{i}" for i in generator.integers(12, size=80).tolist()]
    codes, lengths = _codes(words)
    for n in (2, 3, 4, 5, 8):
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        sizes = {g: sum(map(len, g)) for g in grams}
        best = max((c * sizes[g] for g, c in Counter(grams).items() if c > 1), default=0)
        assert top_ngram_characters(codes, lengths, n) == best
        covered = np.zeros(len(words), dtype=bool)
        for i, gram in enumerate(grams):
            if gram in grams[:i]:
                covered[i : i + n] = True
        assert repeated_ngram_characters(codes, lengths, n) == sum(
            len(w) for w, c in zip(words, covered, strict=True) if c
        )


def test_repeated_lines_and_paragraphs_are_seen():
    shares = {name: share for name, share, _ in measure("a b c\na b c\na b c\nd e f", RepetitionConfig())}
    assert shares["lines"] == 0.5
    assert shares["paragraphs"] == 0


def test_a_text_of_few_words_has_figures_too():
    assert all(share == 0 for _, share, _ in measure("word", RepetitionConfig()))
    assert all(share == 0 for _, share, _ in measure("", RepetitionConfig()))
