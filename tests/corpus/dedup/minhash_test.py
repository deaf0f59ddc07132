"""Laws of near-duplicate detection, against all pairs compared by brute force."""

import itertools

import numpy as np
import pytest

from trivium.corpus.dedup.cluster import components
from trivium.corpus.dedup.minhash import MinHash, candidate_pairs, chance_of_candidacy, jaccard, shingles
from trivium.corpus.plant import edited_copy
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


def test_jaccard_of_shingles_equals_brute_force(corpus):
    for a, b in itertools.combinations(corpus[:20], 2):
        assert jaccard(shingles(a, size=5), shingles(b, size=5)) == pytest.approx(
            brute_jaccard(grams(a), grams(b))
        )


def test_nearly_every_pair_above_the_threshold_is_proposed(corpus):
    minhash = MinHash(bands=24, rows=5, seed=1)
    proposed = candidate_pairs(np.array([minhash.band_keys(shingles(text, size=5)) for text in corpus]))
    sets = [grams(text) for text in corpus]
    pairs = itertools.combinations(range(len(corpus)), 2)
    similar = {(a, b) for a, b in pairs if brute_jaccard(sets[a], sets[b]) >= 0.8}
    assert len(similar) > 100
    assert len(similar & proposed) >= 0.99 * len(similar)
    assert len(proposed) < 0.05 * len(corpus) ** 2


def test_the_chance_of_being_proposed_is_that_of_the_formula(corpus):
    first = shingles(corpus[0], size=5)
    other = shingles(corpus[3], size=5)
    similarity = jaccard(first, other)
    agree = []
    for seed in range(40):
        minhash = MinHash(bands=24, rows=1, seed=seed)
        agree.append(np.mean(minhash.band_keys(first) == minhash.band_keys(other)))
    assert np.mean(agree) == pytest.approx(similarity, abs=0.05)
    assert chance_of_candidacy(0.8, bands=24, rows=5) > 0.999
    assert chance_of_candidacy(0.8, bands=20, rows=13) == pytest.approx(0.68, abs=0.01)


def test_a_bucket_of_many_costs_pairs_in_proportion_and_stays_connected():
    keys = np.zeros((1000, 1), dtype=np.uint64)
    pairs = candidate_pairs(keys)
    assert len(pairs) < 10_000
    assert len(set(components(pairs, documents=1000).tolist())) == 1
