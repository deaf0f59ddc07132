"""Laws of exact repetition: the first stays, every later one goes, and nothing else does."""

from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus.config import DedupConfig
from trivium.corpus.dedup.repeats import NOTHING_NEW, without_equal_texts, without_repeated
from trivium.corpus.document import Document
from trivium.corpus.steps import Reject, Tally

LINES = st.lists(
    st.sampled_from(["One line here now.", "one  line, here NOW", "Another line of it.", "short", "", "---"])
)


def documents(texts):
    return [Document(f"d{n}", text, "s") for n, text in enumerate(texts)]


def by_text(whole, tally, **config):
    return list(without_equal_texts(lambda: iter(whole), DedupConfig(**config), tally))


def test_of_equal_texts_the_first_stays_whatever_case_and_punctuation():
    tally = Tally("by text")
    results = by_text(documents(["A b, c.", "a B c", "a b d", "A b, c."]), tally)
    assert [isinstance(r, Reject) for r in results] == [False, True, False, True]
    assert (tally.documents, sum(tally.dropped.values())) == (2, 2)
    assert [r.document.metadata for r in results if isinstance(r, Reject)] == [{"same": {"survivor": "d0"}}] * 2


def test_different_texts_of_one_id_stay():
    numbered = [Document("0", "A text of one file.", "a"), Document("0", "A text of another.", "b")]
    assert by_text(numbered, Tally("by text")) == numbered


@given(st.lists(LINES, max_size=8))
def test_no_long_line_stands_twice_and_none_is_lost(texts):
    whole = documents(["\n".join(lines) for lines in texts])
    tally = Tally("by lines")
    results = list(without_repeated(whole, "lines", tally, words=3))
    assert len(results) == len(whole)
    kept = [line for r in results if isinstance(r, Document) for line in r.text.split("\n")]
    words = [tuple("".join(c if c.isalnum() else " " for c in line.lower()).split()) for line in kept]
    long = [w for w in words if len(w) >= 3]
    assert len(long) == len(set(long))
    found = {tuple("".join(c if c.isalnum() else " " for c in n.lower()).split()) for t in texts for n in t}
    assert {w for w in found if len(w) >= 3} == set(long)
    assert tally.documents + sum(tally.dropped.values()) == len(whole)


def test_what_has_no_words_or_few_stays_however_many_signs_stand_in_it():
    text = "One line of five words.\n* * * * *\nAnother line of five words.\n- - x - - y -\n| 1 | 2 |"
    whole = [Document("a", text, "s"), Document("b", text, "s")]
    first, second = without_repeated(whole, "lines", Tally("by lines"), words=3)
    assert first.text == text
    assert second.text == "* * * * *\n- - x - - y -\n| 1 | 2 |"


def test_a_document_says_how_much_of_it_went_and_goes_when_nothing_is_left():
    texts = [
        "A first paragraph of words.\n\nA second one of them.",
        "a second one of them\n\nNew words, these are.",
        "A first paragraph of words!",
    ]
    tally = Tally("by paragraphs")
    first, second, third = without_repeated(documents(texts), "paragraphs", tally, words=3)
    assert first.text == texts[0] and first.metadata == {}
    assert (second.text, second.metadata) == ("New words, these are.", {"repeated": {"paragraphs": 1}})
    assert isinstance(third, Reject) and third.reason == NOTHING_NEW


def test_short_lines_may_stand_anywhere():
    tally = Tally("by lines")
    results = list(
        without_repeated(
            documents(["* * *\nFirst of all lines.", "* * *\nSecond of all lines."]), "lines", tally, words=4
        )
    )
    assert [r.text for r in results] == ["* * *\nFirst of all lines.", "* * *\nSecond of all lines."]
