"""The kernels' figures are those of plain Python, for any text and however texts are put together in a batch."""

import re

import pytest
from ftfy.badness import BADNESS_RE, is_bad
from ftfy.chardata import CONTROL_CHARS
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.corpus.clean.oracles import fineweb_figures, quality_figures, repetition_rules

from trivium.corpus.clean import quality, repetition
from trivium.corpus.clean.filters import FILTERS, named_steps
from trivium.corpus.clean.tidy import REPAIRED_LETTERS, looks_damaged
from trivium.corpus.config import CurateConfig, FineWebConfig, RepetitionConfig
from trivium.corpus.document import Document
from trivium.corpus.kernels.characters import BLANK, DIGIT, LETTER, ODD, WORD, character_classes

# what the rules look at, and blanks, letters and signs that look or fold like it
PIECES = [
    *(" ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\x1c", "\x0b", "\u0085", "\u2028"),
    *("the", "Be", "TO", "(of)", '"and,"', "that!", "have", "with", "w\u0131th", "the-be", "to.", "\u212a"),
    *("#", "…", ".", "..", "...", "....", "-", "*", "•", "‣", "▪", "◦", "–", "!", "?", '"', "'", "”", "’"),
    *(")", ":", ";", ",", "é", "ß", "İ", "ſ", "٣", "²", "Ⅷ", "_", "日本語", "\U0001d54f", "\U0001f600"),
    *("word", "another", "a", "b", "1", "1,234 likes", "2k views", "77 Followers!", "3 retweetss", "12kkk"),
    *("Sign in", "sign-up", "LOG IN", "login", "register", "Home", "menu!", "Search", "skip to content"),
    *("Read more", "3 items in cart", "add to cart", "subscribe", "share on x", "share this", "follow us"),
    *("back to top", "terms of use", "Terms and Conditions", "privacy policy", "cookie policy", "uses cookies"),
    *("use of cookies", "all rights reserved", "requires JavaScript", "Lorem ipsum", "cooKies", "poliſy"),
]
texts = st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(max_size=80)
spaced = st.lists(st.sampled_from(PIECES), max_size=60).map(" ".join)


@settings(max_examples=400, deadline=None)
@given(st.lists(texts | spaced, min_size=1, max_size=4))
@example(["", " \n\n ", "word"])
@example(["x" * 70_000 + "\n" + "y " * 9])
def test_quality_figures_are_those_of_plain_python(batch):
    assert quality.measure_quality(batch) == [quality_figures(text) for text in batch]


@settings(max_examples=200, deadline=None)
@given(st.lists(texts, min_size=1, max_size=4), st.integers(0, 40))
def test_fineweb_figures_are_those_of_plain_python(batch, short):
    config = FineWebConfig(short_line=short)
    found = quality.measure_fineweb(batch, short_line=short)
    assert found == [fineweb_figures(text, config) for text in batch]


few_words = st.lists(st.sampled_from(["a", "bb", "é", " ", "\n", "\n\n", "\r\n", "a\n", "\u00a0"]), max_size=90)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(texts | few_words.map("".join) | few_words.map(" ".join), min_size=1, max_size=4),
    st.integers(0, 4),
    st.integers(0, 7),
)
def test_repetition_shares_are_those_of_plain_python(batch, tops, repeated):
    config = RepetitionConfig(top_ngram=(0.2,) * tops, repeated_ngram=(0.1,) * repeated)
    found = repetition.measure_all(batch, config)
    assert found == [repetition_rules(text, config) for text in batch]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([quality._MENU, quality._CALL, quality._COUNTER, quality._POLICY]).flatmap(st.from_regex))
def test_no_line_that_the_patterns_find_is_passed_over_by_the_kernel(text):
    assert quality.measure_quality([text])[0]["boilerplate_words"] == quality_figures(text)["boilerplate_words"]


def test_a_pattern_that_ignores_case_takes_no_other_characters_for_ascii_than_the_kernel_expects():
    classes = character_classes()
    for number in range(128, len(classes)):
        assert bool(classes[number] & ODD) == bool(re.match("[a-z]", chr(number), re.I)), hex(number)


@pytest.mark.parametrize(("bit", "pattern"), [(BLANK, r"\s"), (WORD, r"\w"), (DIGIT, r"\d"), (LETTER, None)], ids=str)
def test_character_classes_are_pythons_own(bit, pattern):
    every = "".join(map(chr, range(len(character_classes()))))
    isalpha = [number for number, character in enumerate(every) if character.isalpha()]
    expected = [m.start() for m in re.finditer(pattern, every)] if pattern else isalpha
    assert (character_classes() & bit).nonzero()[0].tolist() == expected


@settings(max_examples=300, deadline=None)
@given(st.from_regex(BADNESS_RE) | st.text(max_size=60) | texts)
@example("¤\x1f×")
@example("\nÀ¢")
def test_signs_of_misread_text_are_found_where_ftfy_finds_them(text):
    """It looks at lines one by one, and again once it has taken out control characters. None is missed; and no other is
    suspected, but one that goes over the end of a line."""
    odd = not REPAIRED_LETTERS.isdisjoint(text)
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    bad = any(is_bad(line) or is_bad(line.translate(CONTROL_CHARS)) for line in lines)
    over_lines = is_bad(text) or is_bad(text.translate(CONTROL_CHARS))
    assert looks_damaged(text) in {odd or bad, odd or bad or over_lines}


@settings(max_examples=60, deadline=None)
@given(st.lists(texts, max_size=12))
def test_many_documents_at_once_are_judged_as_each_alone(batch):
    documents = [Document(str(number), text, "s") for number, text in enumerate(batch)]
    names = tuple(name for name in FILTERS if name != "classifier")
    for step in named_steps(CurateConfig(filters=names), seed=1):
        assert step.verdicts(documents) == [step.judge(document) for document in documents]
