"""Exact duplicates, canonical addresses, groups of duplicates and their survivors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus.dedup.groups import (
    SAME_ADDRESS,
    SAME_ID,
    SAME_TEXT,
    FirstOnly,
    canonical_url,
    components,
    ranks_of,
    survivors,
    text_key,
    url_key,
)
from trivium.corpus.document import Document


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


def test_case_blanks_and_punctuation_do_not_make_texts_different():
    assert text_key("One, two.\nThree!") == text_key("one two  three")
    assert text_key("one two three") != text_key("one three two")


def test_the_first_of_equal_texts_stays_and_equal_ids_do_not_pass_unseen():
    first = FirstOnly()
    asked = [(b"one", "a"), (b"one", "b"), (b"two", "a"), (b"two", "c")]
    # a document that is dropped is as if it had never been there: its text and id bar nobody
    found = [first.repeats(10 + n, *one) for n, one in enumerate(asked)]
    assert found == [None, (SAME_TEXT, 10), (SAME_ID, 10), None]


def test_the_first_document_of_an_address_stays_and_documents_without_one_are_not_compared():
    first = FirstOnly()
    asked = [(b"1", "a", b"x"), (b"2", "b", b"x"), (b"3", "c", b""), (b"4", "d", b"")]
    found = [first.repeats(10 + n, *one) for n, one in enumerate(asked)]
    assert found == [None, (SAME_ADDRESS, 10), None, None]


PAGE = "https://a.example/news/1?id=7&page=2"


@pytest.mark.parametrize(
    "same",
    [
        "http://a.example/news/1?id=7&page=2",
        "https://www.A.Example:443/news/1/?page=2&id=7#top",
        "https://a.example/news/1?utm_source=x&id=7&fbclid=abc&page=2",
        " https://a.example/news/1?id=7&page=2 ",
    ],
)
def test_what_does_not_change_a_page_does_not_change_its_address(same):
    assert canonical_url(same) == canonical_url(PAGE)


@pytest.mark.parametrize(
    "other",
    ["https://a.example/news/2?id=7&page=2", "https://a.example/News/1?id=7&page=2", "https://a.example:8443/news/1?id=7&page=2",
     "https://b.a.example/news/1?id=7&page=2", "https://a.example/news/1?id=7&page=3"],
)  # fmt: skip
def test_what_changes_a_page_changes_its_address(other):
    assert canonical_url(other) != canonical_url(PAGE)


@given(st.text(max_size=60))
def test_no_address_is_an_error_and_a_canonical_one_stays(text):
    once = canonical_url(text)
    assert canonical_url("https://" + once) in (once, "") or "//" in once or once == ""
    url_key(Document("a", "", "s", {"url": text}))
