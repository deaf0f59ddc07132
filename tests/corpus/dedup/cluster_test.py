"""Laws of grouping duplicates."""

import numpy as np

from trivium.corpus.dedup.groups import components, ranks_of, survivors


def test_groups_are_what_pairs_connect_and_singles_stay_alone():
    labels = components([(0, 1), (1, 4), (2, 3)], documents=6)
    assert [sorted(np.flatnonzero(labels == label).tolist()) for label in dict.fromkeys(labels.tolist())] == [
        [0, 1, 4],
        [2, 3],
        [5],
    ]


def test_the_survivor_is_the_first_document_of_the_best_source():
    labels = [0, 0, 0, 1, 1, 2]
    sources = ["web", "books", "books", "web", "web", "books"]
    assert survivors(labels, ranks_of(sources, priority=["books"])).tolist() == [1, 1, 1, 3, 3, 5]
    assert survivors(labels, ranks_of(sources, priority=[])).tolist() == [0, 0, 0, 3, 3, 5]


def test_among_documents_of_equal_rank_the_best_survives_and_of_equally_good_ones_the_first():
    ranks = [1, 1, 1, 0]
    assert survivors([0, 0, 0, 1], ranks, [0.1, 0.9, 0.9, 0.0]).tolist() == [1, 1, 1, 3]
    assert survivors([0, 0, 0, 0], ranks, [0.1, 0.9, 0.9, 0.0]).tolist() == [3, 3, 3, 3]
