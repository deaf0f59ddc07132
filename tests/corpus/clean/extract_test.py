"""Laws of extraction: the article stays, the frame goes."""

import os
from importlib import import_module
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


@pytest.fixture()
def benchmark(monkeypatch):
    """The benchmark of extractors."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmarks"))
    return import_module("extraction")


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


def test_articles_of_real_pages_are_found_with_a_word_f1_above_0_85(benchmark):
    if "TRIVIUM_DATA" not in os.environ:
        pytest.skip("TRIVIUM_DATA is not set: no real pages here")
    pages = list(benchmark.gold_pages(Path(os.environ["TRIVIUM_DATA"]) / "html").values())[:40]
    found = [benchmark.scores(tidy(extractor(ExtractConfig())(decode(html, None))), gold)[0] for html, gold in pages]
    assert sum(found) / len(found) > 0.85


def test_f1_of_a_text_with_itself_is_one_and_with_another_is_what_they_share(benchmark):
    scores = benchmark.scores
    assert scores("a b c d e", "A b, c d e") == (1.0, 1.0)
    assert scores("a b c d", "a b x y") == (0.5, 0.0)
    assert scores("", "") == (1.0, 1.0)
    assert scores("a a a b", "a b")[0] == pytest.approx(2 * 2 / 6)
