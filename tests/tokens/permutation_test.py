import numpy as np
import pytest

from trivium.tokens.permutation import Permutation

SMALL = [9, 7, 0, 6, 2, 3, 5, 1, 8, 4]
LARGE = [875031046472, 147776104390, 524109212914, 632959125254]


@pytest.mark.parametrize("size", [*range(1, 70), 255, 256, 257, 1000, 65537])
def test_every_position_is_visited_once(size):
    order = Permutation(size, 7, "order")[np.arange(size)]
    assert np.array_equal(np.sort(order), np.arange(size))


def test_permutation_depends_on_seed_and_names_only():
    at = np.arange(1000)
    first = Permutation(1000, 7, "a", 0)[at]
    assert np.array_equal(first, Permutation(1000, 7, "a", 0)[at])
    for other in (Permutation(1000, 8, "a", 0), Permutation(1000, 7, "b", 0), Permutation(1000, 7, "a", 1)):
        assert (first == other[at]).mean() < 0.02


@pytest.mark.parametrize("size", [1, 2, 3, 70, 257, 10**12])
def test_inverse_gives_position_of_value(size):
    order, at = Permutation(size, 7, "order"), np.arange(min(size, 500))
    assert np.array_equal(order.inverse(order[at]), at) and np.array_equal(order[order.inverse(at)], at)


def test_each_looks_up_several_permutations():
    orders = [Permutation(70, 7, "order", epoch) for epoch in range(3)]
    which, at = np.arange(210) % 3, np.arange(210) // 3
    together = Permutation.each(orders, which, at)
    assert together.tolist() == [int(orders[w][np.asarray(k)]) for w, k in zip(which, at, strict=True)]


def test_permutations_are_stable_across_versions():
    """A training of an older version continues with the same samples."""
    assert Permutation(10, 7, "samples", "prose", 0)[np.arange(10)].tolist() == SMALL
    assert Permutation(10**12, 7, "samples", "prose", 3)[np.arange(4)].tolist() == LARGE


def test_positions_are_uniform_and_neighbours_separated():
    # Over 4000 keys, each of 10 values comes first about 400 times: chi-square with 9 degrees of freedom.
    firsts = [int(Permutation(10, key, "order")[np.asarray(0)]) for key in range(4000)]
    counts = np.bincount(firsts, minlength=10)
    assert ((counts - 400) ** 2 / 400).sum() < 27.9  # exceeded with probability 0.1 %
    order = Permutation(10000, 7, "order")[np.arange(10000)]
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05


@pytest.mark.parametrize("position", [-1, 10])
def test_positions_outside_are_rejected(position):
    with pytest.raises(IndexError, match=str(position)):
        Permutation(10, 7, "order")[np.asarray([position])]


def test_empty_permutation_is_rejected():
    with pytest.raises(ValueError, match="0 things"):
        Permutation(0, 7)
