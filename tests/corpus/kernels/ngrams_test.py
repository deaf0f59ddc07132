"""The scan for n-grams finds what a plain search finds."""

from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus.kernels.ngrams import find_ngrams, ngram_index
from trivium.corpus.kernels.texts import WORD, texts_of, words_of

WORDS = st.lists(st.sampled_from(["a", "B", "é", "日本", "คำค", "Σ", "dd"]), max_size=25)
KEYS = st.lists(WORDS.filter(bool).map(lambda words: " ".join(words_of(" ".join(words[:6])))), max_size=8)


def plain(texts, keys):
    for number, text in enumerate(texts):
        places, words = list(WORD.finditer(text)), words_of(text)
        for first in range(len(words)):
            for size in range(len(words) - first, 0, -1):
                key = " ".join(words[first : first + size])
                if key in keys:
                    begin, end = places[first].start(), places[first + size - 1].end()
                    yield [number, len(text[:begin].encode()), len(text[:end].encode()), keys.index(key)]


@given(st.lists(WORDS.map(", ".join), max_size=4), KEYS)
def test_every_key_is_found_where_it_stands_and_nowhere_else(texts, keys):
    keys = list(dict.fromkeys(keys))
    assert find_ngrams(texts_of(texts), ngram_index(keys)).tolist() == list(plain(texts, keys))
