"""Laws of signatures and of the pairs they propose, against plain Python."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus.kernels.shingles import band_keys, pairs_in_band, shingle_sets, signatures
from trivium.corpus.kernels.texts import texts_of

WORDS = st.lists(st.sampled_from("abcdefgh"), max_size=30).map(" ".join)


@given(st.lists(WORDS, min_size=1, max_size=5), st.integers(0, 2**32))
def test_signatures_are_the_smallest_values_over_the_shingles(texts, seed):
    multipliers = np.random.default_rng(seed).integers(0, 2**32, (2, 8), dtype=np.uint32) | np.uint32(1)
    found = signatures(texts_of(texts), size=3, multipliers=multipliers)
    for text, row in zip(texts, found.tolist(), strict=True):
        every = [int(h) for h in shingle_sets(texts_of([text]), size=3).hashes]
        for k, value in enumerate(row):
            a, b = int(multipliers[0, k]), int(multipliers[1, k])
            values = [((h % 2**32) * a + (h >> 32) * b) % 2**32 for h in every]
            assert value == min(values, default=2**32 - 1)


def test_band_keys_are_equal_where_the_rows_of_a_band_are_and_texts_without_words_have_none():
    smallest = np.array([[1, 2, 3, 4], [1, 2, 9, 4], [2**32 - 1] * 4], np.uint32)
    keys = band_keys(smallest, bands=2, rows=2)
    assert keys[0, 0] == keys[0, 1] and keys[1, 0] != keys[1, 1]
    assert keys[:, 2].tolist() == [0, 0]
    assert len(pairs_in_band(np.zeros(5, np.uint64), chain=4)) == 0


@given(st.lists(st.integers(1, 4), max_size=40), st.integers(1, 50))
def test_every_pair_of_a_small_bucket_is_proposed_and_large_ones_stay_connected(keys, chain):
    column = np.array(keys, np.uint64)
    found = {tuple(pair) for pair in pairs_in_band(column, chain=chain).tolist()}
    buckets = [[i for i, k in enumerate(keys) if k == key] for key in set(keys)]
    for bucket in buckets:
        pairs = set(itertools.combinations(bucket, 2))
        if len(bucket) <= chain + 1:
            assert pairs <= found
        else:
            assert set(itertools.pairwise(bucket)) <= found
    assert found <= {pair for bucket in buckets for pair in itertools.combinations(bucket, 2)}
    assert len(found) <= (chain + 1) * len(keys)


def test_pairs_beyond_the_first_buffer_are_all_returned():
    texts, chain = 3000, 3
    expected = [
        [earlier, later] for later in range(texts) for earlier in sorted({*range(min(later, chain)), later - 1} - {-1})
    ]
    assert pairs_in_band(np.ones(texts, np.uint64), chain=chain).tolist() == expected
