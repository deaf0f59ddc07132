"""Laws of the check of extraction: F1 is that of multisets, and gold that is not there is named."""

import gzip
import json

import pytest

from trivium.corpus.clean.extract_check import check_extraction, extraction_lines, scores
from trivium.errors import DataError

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
    assert len(extraction_lines(rows)) == 1 + len(rows)


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
