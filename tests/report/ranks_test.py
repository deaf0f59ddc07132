from hypothesis import given
from hypothesis import strategies as st

from trivium.report.ranks import alike, categories


def row(rank, held, *, predicted=None, **at):
    return {
        "rank": rank,
        "coordinate": at,
        "categories": {"activations": held, "weights": 1},
        "predicted": {"weights": 1, "activations": held if predicted is None else predicted},
    }


def test_identical_ranks_are_grouped():
    rows = [row(rank, 10 + rank // 4, pipeline=rank // 4, data=rank % 4, tensor=0) for rank in range(8)]
    first, second = alike(rows)
    assert (first.name, first.where) == ("ranks 0-3", "pipeline 0, tensor 0")
    assert (second.name, second.counted["activations"]) == ("ranks 4-7", 11)


def test_different_prediction_separates_ranks():
    assert [g.name for g in alike([row(0, 5), row(1, 5, predicted=6), row(2, 5)])] == ["ranks 0, 2", "rank 1"]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_every_rank_is_in_one_group(held):
    groups = alike([row(rank, bytes_) for rank, bytes_ in enumerate(held)])
    assert sorted(r for g in groups for r in g.ranks) == list(range(len(held)))
    assert all(held[r] == g.counted["activations"] for g in groups for r in g.ranks)


def test_categories_are_ordered_by_lifetime():
    (group,) = alike([row(0, 5) | {"predicted": {"other": 1}}])
    assert categories([group]) == ["weights", "activations", "other"]
