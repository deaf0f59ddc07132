"""Packing into bins, and the division of a batch among data ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.errors import DataError
from trivium.tokens.chat.pack import pack, shares

LENGTHS = st.lists(st.integers(1, 20), max_size=60)


@pytest.mark.parametrize(
    ("lengths", "size", "bins"),
    [
        ([4, 2, 3, 1], 4, [[0], [2, 3], [1]]),  # the example of trl's documentation, with the longest cut to 4
        ([4, 1, 2, 3, 1], 4, [[0], [3, 1], [2, 4]]),
        ([], 4, []),
        ([4, 4], 4, [[0], [1]]),
        ([5, 4, 3, 3, 1], 8, [[0, 2], [1, 3, 4]]),
    ],
)
def test_each_document_goes_to_the_fullest_bin_with_room(lengths: list[int], size: int, bins: list[list[int]]) -> None:
    assert pack(lengths, size) == bins


@given(LENGTHS)
def test_bins_hold_every_document_once_as_best_fit_decreasing_does(lengths: list[int]) -> None:
    bins = pack(lengths, 20)
    assert sorted(number for one in bins for number in one) == list(range(len(lengths)))
    assert all(sum(lengths[number] for number in one) <= 20 for one in bins)
    # The plain form of the algorithm, which looks at every bin.
    room: list[int] = []
    for length in sorted(lengths, reverse=True):
        fits = [b for b in range(len(room)) if room[b] >= length]
        best = min(fits, key=lambda b: room[b]) if fits else len(room)
        room = room if fits else [*room, 20]
        room[best] -= length
    assert sorted(sum(lengths[n] for n in one) for one in bins) == sorted(20 - left for left in room)


def test_a_document_of_more_than_a_bin_is_refused() -> None:
    with pytest.raises(DataError, match="document 1 has 5 tokens, more than the 4 of a bin"):
        pack([4, 5], 4)


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 99))
def test_shares_are_equal_in_number_and_balanced_in_cost(ranks: int, each: int, seed: int) -> None:
    costs = np.random.default_rng(seed).integers(1, 1000, ranks * each).tolist()
    found = shares(costs, ranks)
    assert sorted(number for one in found for number in one) == list(range(len(costs)))
    assert {len(one) for one in found} == {each}
    sums = [sum(costs[number] for number in one) for one in found]
    assert max(sums) - min(sums) <= max(costs) * (1 if each > 1 else 2)
    in_order = [sum(costs[rank * each : (rank + 1) * each]) for rank in range(ranks)]
    assert max(sums) <= max(max(in_order), sum(costs) / ranks + max(costs))
