"""Laws of extraction: the article stays, the frame goes."""

import gzip
import json
import os
from pathlib import Path

import pytest

from trivium.corpus.clean.extract import extract_step, extractor
from trivium.corpus.clean.extract_check import check_extraction, gold_pages, scores
from trivium.corpus.clean.tidy import tidy
from trivium.corpus.config import ExtractConfig
from trivium.corpus.document import RAW, Document
from trivium.corpus.harvest.plant import html_page
from trivium.corpus.read.encoding import decode
from trivium.corpus.steps import Drop, Keep
from trivium.errors import DataError
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


def test_articles_of_real_pages_are_found_with_a_word_f1_above_0_85():
    if "TRIVIUM_DATA" not in os.environ:
        pytest.skip("TRIVIUM_DATA is not set: no real pages here")
    pages = list(gold_pages(Path(os.environ["TRIVIUM_DATA"]) / "html").values())[:40]
    found = [scores(tidy(extractor(ExtractConfig())(decode(html, None))), gold)[0] for html, gold in pages]
    assert sum(found) / len(found) > 0.85


ARTICLE = "The first sentence of the article says what it is about. The second one goes on with it at some length. "


@pytest.fixture
def gold(tmp_path):
    (tmp_path / "pages").mkdir()
    html = f"<html><body><nav>Home About</nav><article><p>{ARTICLE * 4}</p><p>{ARTICLE * 3}</p></article></body></html>"
    (tmp_path / "pages" / "a.html.gz").write_bytes(gzip.compress(html.encode()))
    (tmp_path / "ground-truth.json").write_text(json.dumps({"a": {"articleBody": ARTICLE * 7}}))
    return tmp_path


def test_f1_of_a_text_with_itself_is_one_and_with_another_is_what_they_share():
    assert scores("a b c d e", "A b, c d e") == (1.0, 1.0)
    assert scores("a b c d", "a b x y") == (0.5, 0.0)
    assert scores("", "") == (1.0, 1.0)
    assert scores("a a a b", "a b")[0] == pytest.approx(2 * 2 / 6)


def test_every_extractor_is_judged_on_every_page(gold):
    rows = check_extraction(gold)
    assert "blocks (default)" in rows
    measured = {name: row for name, row in rows.items() if "missing" not in row}
    for row in measured.values():
        assert row["pages"] == 1 and row["f1_of_pages"].keys() == {"a"}
    assert rows["blocks (default)"]["word_f1"] > 0.95


@pytest.mark.parametrize("damage", ["absent", "page", "cut", "flipped", "json"])
def test_gold_that_cannot_be_read_is_named(gold, damage):
    if damage == "page":
        (gold / "pages" / "a.html.gz").unlink()
    elif damage in ("cut", "flipped"):
        page = gold / "pages" / "a.html.gz"
        whole = page.read_bytes()
        page.write_bytes(whole[:-20] if damage == "cut" else whole[:12] + b"\xff" * 9 + whole[21:])
    elif damage == "json":
        (gold / "ground-truth.json").write_text("[]")
    else:
        gold = gold / "nowhere"
    with pytest.raises(DataError, match="no gold pages"):
        check_extraction(gold)
