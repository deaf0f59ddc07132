"""Laws of cleaning: the words stay, what is no text goes, and clean text stays as it is."""

import unicodedata

import ftfy
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.corpus.clean import tidy


def test_control_characters_blanks_and_empty_lines_are_cleaned():
    assert tidy("a\x00b\x07 \t\u00a0 c \r\n\r\n\r\n d\x81\ufeff") == "ab c\n\nd"
    assert tidy("cafe\u0301") == "café"
    assert tidy("ﬁne ﬂow ＡＢ") == "fine flow AB"


def test_wrongly_decoded_text_is_repaired():
    for text in ("naïve café — “quoted” …", "Größe und Überfluß", "Привет, мир", "日本語の文章です。"):
        assert tidy(text.encode().decode("latin-1")) == tidy(text)
        assert tidy(text) == text


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_clean_text_can_be_encoded_and_holds_no_control_character(text):
    once = tidy(text)
    once.encode()
    assert not set(once) & {chr(n) for n in range(32) if n != 10}


@settings(max_examples=300, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"], exclude_characters="\u00a0"), max_size=200)
)
def test_clean_text_stays_as_it_is(text):
    """Controls, no-break spaces and what is not NFC are left out: with them gone, text can look mis-decoded."""
    text = unicodedata.normalize("NFC", text)
    assert tidy(tidy(text)) == tidy(text)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), max_size=200))
def test_the_short_cut_loses_nothing_that_ftfy_would_repair(text):
    """ftfy also unescapes entities and terminal codes, which extraction has done; those are left out here.

    So is what is not NFC: composed (the Ångström sign becomes a letter), it can look mis-decoded to a second look.
    """
    text = unicodedata.normalize("NFC", text)
    whole = ftfy.fix_text(text, normalization="NFC", uncurl_quotes=False, unescape_html=False)
    if "&" not in text:
        assert tidy(text) == tidy(whole)
