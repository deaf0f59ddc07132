"""Laws for scripts without blanks between words: small changes leave near duplicates, and long quotations are found."""

import pytest

from trivium.corpus.config import DecontaminationConfig
from trivium.corpus.dedup.minhash import MinHash, candidate_pairs
from trivium.corpus.kernels.shingles import jaccard_of_pairs, shingle_sets
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.select.decontaminate import Keys, cut
from trivium.seeds import generator_for

# first letter of each script, how many letters are taken from there, and the end of a sentence
SCRIPTS = {
    "Chinese": (0x4E00, 900, "。"),
    "Japanese": (0x3042, 80, "。"),
    "Thai": (0x0E01, 46, " "),
    "Lao": (0x0E99, 20, " "),
    "Khmer": (0x1780, 35, "។"),
    "Burmese": (0x1000, 33, "။"),
    "Yi": (0xA000, 900, "。"),
}


def prose(generator, script, letters):
    first, count, end = SCRIPTS[script]
    text = "".join(chr(first + int(n)) for n in generator.integers(count, size=letters))
    return end.join(text[n : n + 30] for n in range(0, letters, 30)) + end


def edited(generator, text, changes):
    """The text with some letters replaced by others of it."""
    letters = list(text)
    for place in generator.choice(len(text), size=changes, replace=False):
        letters[place] = text[int(generator.integers(len(text)))]
    return "".join(letters)


@pytest.mark.parametrize("script", SCRIPTS)
def test_texts_of_which_one_letter_in_a_hundred_differs_are_near_duplicates(script):
    generator = generator_for(1, "unspaced", script)
    one = prose(generator, script, 900)
    other = edited(generator, one, 9)
    third = prose(generator, script, 900)
    texts = texts_of([one, other, third])
    keys = MinHash(bands=24, rows=5, shingle=5, seed=1).band_keys(texts)
    assert candidate_pairs(keys).tolist() == [[0, 1]]
    sets = shingle_sets(texts, size=5)
    letters = [[c for c in text if c.isalnum()] for text in (one, other)]
    plain = [{tuple(each[n : n + 5]) for n in range(len(each) - 4)} for each in letters]
    (found,) = jaccard_of_pairs(sets, sets, candidate_pairs(keys))
    assert found == len(plain[0] & plain[1]) / len(plain[0] | plain[1]) > 0.8


@pytest.mark.parametrize("script", SCRIPTS)
def test_evaluation_text_inside_a_sentence_is_found_and_cut_out(script):
    generator = generator_for(2, "unspaced", script)
    item = prose(generator, script, 60)
    before, after = prose(generator, script, 900), prose(generator, script, 900)
    text = before[:-5] + item[3:25] + after
    config = DecontaminationConfig(piece=100)
    keys = Keys({"item": item}, config)
    hits = keys.hits(texts_of([text]))[0]
    assert text[hits[0].start : hits[-1].end] == item[3:25]
    left = cut(text, hits, config)
    assert all(item[3:25] not in text[slice(*piece)] for piece in left.pieces)
    if SCRIPTS[script][2] != " ":  # without a sign that ends sentences, a cut goes on to the end of the text
        assert [len(text[slice(*piece)]) > 500 for piece in left.pieces] == [True, True]
    assert keys.hits(texts_of([before + after])) == {}
