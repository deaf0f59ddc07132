"""Near duplicates against brute force over all pairs; groups, survivors, and canonical addresses."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus.config import DecontaminationConfig, DedupConfig
from trivium.corpus.dedup.groups import canonical_url, components, keys_of_texts, ranks_of, survivors, url_key
from trivium.corpus.dedup.minhash import MAX_COMPARED_TEXTS, MinHash, jaccard, merged_pairs, shingles
from trivium.corpus.document import Document
from trivium.corpus.harvest.plant import edited_copy
from trivium.corpus.kernels.shingles import jaccard_of_pairs, pairs_in_band, shingle_sets
from trivium.corpus.kernels.texts import texts_of
from trivium.corpus.select.decontaminate import Keys, cut
from trivium.seeds import generator_for

# First letter of each script, how many letters are taken from there, and the end of a sentence.
SCRIPTS = {
    "Chinese": (0x4E00, 900, "。"),
    "Japanese": (0x3042, 80, "。"),
    "Thai": (0x0E01, 46, " "),
    "Lao": (0x0E99, 20, " "),
    "Khmer": (0x1780, 35, "។"),
    "Burmese": (0x1000, 33, "။"),
    "Yi": (0xA000, 900, "。"),
}


def grams(words, size=5):
    return {tuple(words[i : i + size]) for i in range(max(len(words) - size + 1, 1))}


def brute_jaccard(a, b):
    return len(a & b) / len(a | b)


@pytest.fixture(scope="module")
def corpus():
    """Return 300 texts: 60 originals, and copies of each from nearly equal to quite different."""
    generator = generator_for(5, "minhash-test")
    vocabulary = [f"word{n}" for n in range(500)]
    texts = []
    for _ in range(60):
        original = " ".join(vocabulary[i] for i in generator.integers(500, size=200))
        texts.append(original)
        for similarity in (0.95, 0.85, 0.75, 0.6):
            texts.append(edited_copy(original, similarity=similarity, low=0.0, generator=generator)[0])
    return texts


def chance_of_candidacy(similarity: float, *, bands: int, rows: int) -> float:
    """Return the chance that a pair of this Jaccard similarity is proposed (Broder 1997; Indyk and Motwani 1998)."""
    return 1 - (1 - similarity**rows) ** bands


def candidate_pairs(keys):
    """Return the pairs that agree in a band."""
    return merged_pairs(pairs_in_band(band, chain=MAX_COMPARED_TEXTS) for band in keys)


def test_every_pair_above_the_threshold_is_found_and_no_other(corpus):
    texts = texts_of(corpus)
    proposed = candidate_pairs(MinHash(DedupConfig(), seed=1).band_keys(texts))
    columns = shingle_sets(texts, size=5)
    similarity = jaccard_of_pairs(columns, columns, proposed)
    found = {tuple(pair) for pair in proposed[similarity >= 0.8].tolist()}
    sets = [grams(text.lower().split()) for text in corpus]
    pairs = itertools.combinations(range(len(corpus)), 2)
    similar = {(a, b) for a, b in pairs if brute_jaccard(sets[a], sets[b]) >= 0.8}
    assert len(similar) > 100
    assert found == similar
    assert len(proposed) < 0.05 * len(corpus) ** 2


def test_chance_of_being_proposed_is_that_of_the_formula(corpus):
    similarity = jaccard(shingles(corpus[0], size=5), shingles(corpus[3], size=5))
    pair = texts_of([corpus[0], corpus[3]])
    agree = []
    for seed in range(40):
        keys = MinHash(DedupConfig(rows=1), seed=seed).band_keys(pair)
        agree.append(np.mean(keys[:, 0] == keys[:, 1]))
    assert np.mean(agree) == pytest.approx(similarity, abs=0.05)


def test_default_bands_miss_one_in_ten_thousand_and_fewer_would_miss_more():
    config, functions = DedupConfig(), 128
    chance = chance_of_candidacy(config.threshold, bands=config.bands, rows=config.rows)
    assert chance >= 0.9999 and config.bands * config.rows <= functions
    assert chance_of_candidacy(config.threshold, bands=config.bands - 1, rows=config.rows) < 0.9999
    wider = config.rows + 1
    assert chance_of_candidacy(config.threshold, bands=functions // wider, rows=wider) < 0.9999


def test_crowded_bucket_costs_pairs_in_proportion_and_stays_connected():
    pairs = candidate_pairs(np.ones((3, 1000), dtype=np.uint64))
    assert len(pairs) < 40_000
    assert len(set(components(pairs, documents=1000).tolist())) == 1


def test_pairs_that_every_band_proposes_are_in_memory_once():
    """With a million near duplicates, each band proposes tens of millions of pairs, and nearly the same ones."""
    later = np.arange(1, 100_001)
    pairs = np.stack([later - 1, later], axis=1)
    tracemalloc.start()
    merged = merged_pairs(pairs.copy() for _ in range(40))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(merged, pairs) and peak < 8 * pairs.nbytes
    lists = [np.array(pairs, np.int64).reshape(-1, 2) for pairs in ([(5, 2**32 - 1), (0, 7)], [], [(0, 7), (0, 3)])]
    assert merged_pairs(lists).tolist() == [[0, 3], [0, 7], [5, 2**32 - 1]]
    assert merged_pairs([]).shape == (0, 2)


def test_groups_are_connected_components():
    labels = components([(0, 1), (1, 4), (2, 3)], documents=6)
    groups = [np.flatnonzero(labels == label).tolist() for label in dict.fromkeys(labels.tolist())]
    assert groups == [[0, 1, 4], [2, 3], [5]]


def test_survivor_is_of_the_best_source_then_of_the_highest_quality_then_the_first():
    labels = [0, 0, 0, 1, 1, 2]
    sources = ["web", "books", "books", "web", "web", "books"]
    assert survivors(labels, ranks_of(sources, priority=["books"])).tolist() == [1, 1, 1, 3, 3, 5]
    assert survivors(labels, ranks_of(sources, priority=[])).tolist() == [0, 0, 0, 3, 3, 5]
    ranks, quality = [1, 1, 1, 0], [0.1, 0.9, 0.9, 0.0]
    assert survivors([0, 0, 0, 1], ranks, quality).tolist() == [1, 1, 1, 3]
    assert survivors([0, 0, 0, 0], ranks, quality).tolist() == [3, 3, 3, 3]


def test_case_blanks_and_punctuation_do_not_distinguish_texts():
    one, same, other = keys_of_texts(["One, two.\nThree!", "one two  three", "one three two"])
    assert one == same != other


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("http://a.example/news/1?id=7&page=2", True),
        ("https://www.A.Example:443/news/1/?page=2&id=7#top", True),
        ("https://a.example/news/1?utm_source=x&id=7&fbclid=abc&page=2", True),
        (" https://a.example/news/1?id=7&page=2 ", True),
        ("https://a.example/news/2?id=7&page=2", False),
        ("https://a.example/News/1?id=7&page=2", False),
        ("https://a.example:8443/news/1?id=7&page=2", False),
        ("https://b.a.example/news/1?id=7&page=2", False),
        ("https://a.example/news/1?id=7&page=3", False),
    ],
)
def test_canonical_address_changes_only_with_the_page(url, same):
    assert (canonical_url(url) == canonical_url("https://a.example/news/1?id=7&page=2")) == same


@given(st.text(max_size=60))
def test_any_text_has_an_address_key(text):
    once = canonical_url(text)
    assert canonical_url("https://" + once) in (once, "") or "//" in once or once == ""
    url_key(Document("a", "", "s", {"url": text}))


def prose(generator, script, letters):
    first, count, end = SCRIPTS[script]
    text = "".join(chr(first + int(n)) for n in generator.integers(count, size=letters))
    return end.join(text[n : n + 30] for n in range(0, letters, 30)) + end


@pytest.mark.parametrize("script", SCRIPTS)
def test_small_changes_leave_near_duplicates_in_scripts_without_blanks(script):
    generator = generator_for(1, "unspaced", script)
    one = prose(generator, script, 900)
    letters = list(one)
    for place in generator.choice(len(one), size=9, replace=False):
        letters[place] = one[int(generator.integers(len(one)))]
    other = "".join(letters)
    texts = texts_of([one, other, prose(generator, script, 900)])
    pairs = candidate_pairs(MinHash(DedupConfig(), seed=1).band_keys(texts))
    assert pairs.tolist() == [[0, 1]]
    sets = shingle_sets(texts, size=5)
    plain = [grams([letter for letter in text if letter.isalnum()]) for text in (one, other)]
    assert jaccard_of_pairs(sets, sets, pairs).tolist() == [brute_jaccard(*plain)] and brute_jaccard(*plain) > 0.8


@pytest.mark.parametrize("script", SCRIPTS)
def test_evaluation_text_is_cut_out_of_sentences_in_scripts_without_blanks(script):
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
    if SCRIPTS[script][2] != " ":  # without a full stop, a cut extends to the end of the text
        assert [len(text[slice(*piece)]) > 500 for piece in left.pieces] == [True, True]
    assert keys.hits(texts_of([before + after])) == {}
