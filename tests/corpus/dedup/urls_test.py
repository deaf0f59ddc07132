"""Laws of addresses: one page has one key, two pages have two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus.dedup.groups import canonical_url, url_key
from trivium.corpus.document import Document

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
