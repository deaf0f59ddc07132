"""Laws of the repetition figures."""

import pytest
from tests.corpus.clean.oracles import repetition_rules

from trivium.corpus.clean.repetition import measure_all
from trivium.corpus.config import RepetitionConfig
from trivium.seeds import generator_for


@pytest.mark.parametrize("seed", range(10))
def test_figures_of_longer_texts_equal_plain_counting(seed):
    generator = generator_for(seed, "repetition-test")
    words = [f"w{'x' * (i % 5)}{i}" for i in generator.integers(12, size=400).tolist()]
    ends = generator.choice([" ", " ", " ", "\n", "\n\n"], size=len(words)).tolist()
    text = "".join(word + end for word, end in zip(words, ends, strict=True))
    assert measure_all([text], RepetitionConfig())[0] == repetition_rules(text, RepetitionConfig())


def test_repeated_lines_and_paragraphs_are_seen():
    shares = {name: share for name, share, _ in measure_all(["a b c\na b c\na b c\nd e f"], RepetitionConfig())[0]}
    assert shares["lines"] == 0.5
    assert shares["paragraphs"] == 0


def test_a_text_of_few_words_has_figures_too():
    assert all(share == 0 for _, share, _ in measure_all(["word"], RepetitionConfig())[0])
    assert all(share == 0 for _, share, _ in measure_all([""], RepetitionConfig())[0])
