"""Laws of near-duplicate detection, against all pairs compared by brute force."""

import itertools
import tracemalloc

import numpy as np
import pytest

from trivium.corpus.config import DedupConfig
from trivium.corpus.dedup.groups import components
from trivium.corpus.dedup.minhash import MinHash, candidate_pairs, jaccard, merged_pairs, shingles
from trivium.corpus.harvest.plant import edited_copy
from trivium.corpus.kernels.shingles import jaccard_of_pairs, shingle_sets
from trivium.corpus.kernels.texts import texts_of
from trivium.seeds import generator_for


def grams(text, size=5):
    words = text.lower().split()
    return {tuple(words[i : i + size]) for i in range(max(len(words) - size + 1, 1))}


def brute_jaccard(a, b):
    return len(a & b) / len(a | b)


@pytest.fixture(scope="module")
def corpus():
    """300 texts: 60 originals and copies of each from nearly equal to quite different."""
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
    """Probability that a pair of this Jaccard similarity is proposed (Broder 1997; Indyk and Motwani 1998)."""
    return 1 - (1 - similarity**rows) ** bands


def test_jaccard_of_shingles_equals_brute_force(corpus):
    for a, b in itertools.combinations(corpus[:20], 2):
        assert jaccard(shingles(a, size=5), shingles(b, size=5)) == pytest.approx(brute_jaccard(grams(a), grams(b)))


def test_every_pair_above_the_threshold_is_found_and_no_other(corpus):
    texts = texts_of(corpus)
    proposed = candidate_pairs(MinHash(bands=24, rows=5, shingle=5, seed=1).band_keys(texts))
    columns = shingle_sets(texts, size=5)
    similarity = jaccard_of_pairs(columns, columns, proposed)
    found = {tuple(pair) for pair in proposed[similarity >= 0.8].tolist()}
    sets = [grams(text) for text in corpus]
    pairs = itertools.combinations(range(len(corpus)), 2)
    similar = {(a, b) for a, b in pairs if brute_jaccard(sets[a], sets[b]) >= 0.8}
    assert len(similar) > 100
    assert found == similar
    assert len(proposed) < 0.05 * len(corpus) ** 2


def test_the_chance_of_being_proposed_is_that_of_the_formula(corpus):
    similarity = jaccard(shingles(corpus[0], size=5), shingles(corpus[3], size=5))
    pair = texts_of([corpus[0], corpus[3]])
    agree = []
    for seed in range(40):
        keys = MinHash(bands=24, rows=1, shingle=5, seed=seed).band_keys(pair)
        agree.append(np.mean(keys[:, 0] == keys[:, 1]))
    assert np.mean(agree) == pytest.approx(similarity, abs=0.05)
    assert chance_of_candidacy(0.8, bands=24, rows=5) > 0.999
    assert chance_of_candidacy(0.8, bands=20, rows=13) == pytest.approx(0.68, abs=0.01)


def test_the_default_bands_miss_one_in_ten_thousand_and_with_more_rows_would_miss_more():
    config, functions = DedupConfig(), 128
    chance = chance_of_candidacy(config.threshold, bands=config.bands, rows=config.rows)
    assert chance >= 0.9999 and config.bands * config.rows <= functions
    assert chance_of_candidacy(config.threshold, bands=config.bands - 1, rows=config.rows) < 0.9999
    wider = config.rows + 1
    assert chance_of_candidacy(config.threshold, bands=functions // wider, rows=wider) < 0.9999


def test_a_bucket_of_many_costs_pairs_in_proportion_and_stays_connected():
    pairs = candidate_pairs(np.ones((3, 1000), dtype=np.uint64))
    assert len(pairs) < 40_000
    assert len(set(components(pairs, documents=1000).tolist())) == 1


def test_pairs_that_every_band_proposes_are_held_once():
    """Of a million near duplicates each band proposes tens of millions of pairs, and nearly the same ones."""
    later = np.arange(1, 100_001)
    pairs = np.stack([later - 1, later], axis=1)
    tracemalloc.start()
    merged = merged_pairs(pairs.copy() for _ in range(40))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(merged, pairs) and peak < 8 * pairs.nbytes


def test_merged_pairs_are_those_of_all_lists_in_order_also_of_far_documents():
    lists = [np.array(pairs, np.int64).reshape(-1, 2) for pairs in ([(5, 2**32 - 1), (0, 7)], [], [(0, 7), (0, 3)])]
    assert merged_pairs(lists).tolist() == [[0, 3], [0, 7], [5, 2**32 - 1]]
    assert merged_pairs([]).shape == (0, 2)
