"""Laws of extraction: the article stays, the frame goes."""

import gzip
import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from trivium.corpus.clean.extract import extract_step, extractor
from trivium.corpus.clean.tidy import tidy
from trivium.corpus.config import ExtractConfig
from trivium.corpus.document import RAW, Document
from trivium.corpus.harvest.plant import html_page
from trivium.corpus.read.encoding import decode
from trivium.corpus.steps import Drop, Keep
from trivium.seeds import generator_for

PARAGRAPHS = [
    f"The {n} reader of this page wants the words of the article & nothing < else > that stands around it."
    for n in ("first", "second", "third")
]


@pytest.mark.parametrize("number", range(8))
def test_a_page_gives_back_its_paragraphs_and_nothing_of_its_frame(number):
    page = html_page(PARAGRAPHS, title="Some title", generator=generator_for(number, "page"))
    text = tidy(extractor(ExtractConfig())(page))
    assert [line for line in text.split("\n\n") if line != "Some title"] == PARAGRAPHS


def test_a_page_without_content_is_dropped_as_empty():
    page = Document(
        "a", "<html><head><title>x</title></head><body><script>f()</script></body></html>", "s", {RAW: "html"}
    )
    assert extract_step().judge(page) == Drop("empty")


def test_plain_text_passes_and_loses_only_blanks():
    verdict = extract_step().judge(Document("a", "  one  two \r\n\r\n\r\n three ", "s"))
    assert isinstance(verdict, Keep)
    assert verdict.document.text == "one two\n\nthree"


@pytest.mark.parametrize("stated", [None, "utf-8", "iso-8859-1", "its own"])
@pytest.mark.parametrize(
    ("charset", "text"),
    [
        ("iso-2022-jp", "これは日本語の文章です。インターネットの歴史。"),
        ("shift_jis", "これは日本語の文章です。インターネットの歴史。"),
        ("gb2312", "今天天气很好我们去公园散步。"),
        ("koi8-r", "Привет мир, это русский текст."),
        ("windows-1251", "Привет мир, это русский текст."),
        ("windows-1252", "naïve café — “quoted”"),
    ],
)
def test_a_page_is_read_as_it_says_where_its_server_says_what_is_said_of_anything(charset, text, stated):
    page = f'<html><head><meta http-equiv="x" content="text/html; charset={charset}"></head><p>{text}</p>'
    assert decode(page.encode(charset), charset if stated == "its own" else stated) == page


def test_bytes_of_any_charset_become_text():
    text = "Größe und Überfluß, naïve café"
    assert decode(text.encode("utf-8"), None) == text
    assert decode(text.encode("latin-1"), "latin-1") == text
    assert decode(text.encode("utf-8"), "no-such-charset") == text
    assert isinstance(decode(bytes(range(256)), "ascii"), str)


def test_mojibake_is_repaired():
    assert tidy("café".encode().decode("latin-1")) == "café"


def test_articles_of_real_pages_are_found_with_a_word_f1_above_0_85():
    if "TRIVIUM_DATA" not in os.environ:
        pytest.skip("TRIVIUM_DATA is not set: no real pages here")
    folder = Path(os.environ["TRIVIUM_DATA"]) / "html"
    truth = json.loads((folder / "ground-truth.json").read_text(encoding="utf-8"))
    scores = []
    for name in sorted(truth)[:40]:
        page = gzip.decompress((folder / "pages" / f"{name}.html.gz").read_bytes())
        scores.append(_f1(tidy(extractor(ExtractConfig())(decode(page, None))), truth[name]["articleBody"]))
    assert sum(scores) / len(scores) > 0.85


def _f1(found, wanted):
    a, b = (Counter(re.findall(r"\w+", text.lower())) for text in (found, wanted))
    shared = (a & b).total()
    return 2 * shared / max(a.total() + b.total(), 1)
