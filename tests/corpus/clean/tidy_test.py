"""Laws of cleaning: the words stay, what is no text goes, and clean text stays as it is."""

import re

import ftfy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trivium.corpus.clean.tidy import tidy

# Any text, and text dense in what mis-decoded text, controls and compositions are made of.
ODDITIES = st.text(max_size=200) | st.text(
    "ÃÂâ€œ™ÐÑŒœÅ &;\n\x07\x80\x85\x9d\u00a0\u00ad\u0301\u206a\u212b\ufeffab", max_size=40
)


def test_control_characters_blanks_and_empty_lines_are_cleaned():
    assert tidy("a\x00b\x07 \t\u00a0 c \r\n\r\n\r\n d\x81\ufeff") == "ab c\n\nd"
    assert tidy("cafe\u0301") == "café"
    assert tidy("ﬁne ﬂow ＡＢ") == "fine flow AB"


def test_page_ends_and_vertical_tabs_end_lines_and_join_no_words():
    assert tidy("the end of a page\x0cthe next\x0bline") == "the end of a page\nthe next\nline"
    assert tidy("one\n\x0c\n\x0c  two\r\x0c three") == "one\n\n  two\n three"
    assert tidy("é\x0ca") == "é\na"


def test_terminal_colours_are_removed():
    assert tidy("\x1b[1;31mRed\x1b[0m and [m] é \x1b[Kx \x1b") == "Red and [m] é x"
    assert tidy("\x1b[1;é \x1b[") == "[1;é ["


def test_soft_hyphens_are_removed_but_used_to_repair_letters():
    assert tidy("a hy\u00adphen\u00adated word, \u00ad at\u00ad\nthe end of a line") == (
        "a hyphenated word, at\nthe end of a line"
    )
    assert tidy("el país más frío".encode().decode("latin-1")) == "el país más frío"


def test_indentation_stays_and_nothing_else_of_blanks():
    code = "def f(x):\n    if x:\n        return 1\n\n    return 2\n\n# tabs\nall:\n\tcc a.c"
    assert tidy(code) == code
    assert tidy("a:\r\n\ufeff \u00a0\x00  b\r\n\u00a0\tc") == "a:\n    b\n \tc"
    assert tidy("a    b\n c\n\n d \t \n   \n\n  e") == "a b\n c\n\nd\n\n  e"


def test_the_punctuation_of_chinese_and_japanese_is_theirs():
    for text in ("今天，天气很好！我们去公园（东门）散步；你呢？", "「東京」へ行く：明日〜、１／２と３．"):
        assert tidy(text) == text.translate({0xFF11: "1", 0xFF12: "2", 0xFF13: "3"})
    assert tidy("ｶﾞｷﾞ　ＡＢ９") == "ガギ AB9"


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
@given(ODDITIES)
@example("a\u00c3\ufeff\u00a9")
@example("\u010e\u00d0\u00c2\u206b\u00b0")
def test_clean_text_stays_as_it_is(text):
    """This includes texts in which removed or composed characters join what then looks mis-decoded."""
    assert tidy(tidy(text)) == tidy(text)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), max_size=200) | ODDITIES)
@example("\u206aÃ ")
@example("One.\nÃ la carte.")
@example("！")
@example("Ａ！ Ã la carte")
@example("0\v0")
@example("dÃ©jÃ\xa0\vvu\fici")
def test_the_short_cut_loses_nothing_that_ftfy_would_repair(text):
    """ftfy also unescapes entities, which extraction has done, narrows punctuation, which Chinese keeps, and drops
    vertical tabs and form feeds, which end lines."""
    kept = {"uncurl_quotes": False, "unescape_html": False, "fix_character_width": False}
    whole = ftfy.fix_text(re.sub("[\v\f]", "\n", text), normalization="NFC", **kept)
    assert tidy(text) == tidy(whole)
