"""Laws of reading a user's files: every document is read or its loss is reported."""

import gzip
import json

import pytest

from trivium.corpus.document import Document
from trivium.corpus.extract import RAW
from trivium.corpus.read import input_files, read_any
from trivium.corpus.warc import Damage, Page, write_warc
from trivium.errors import DataError


def test_json_lines_give_text_id_source_and_metadata(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"id": 7, "text": "seven", "source": "x", "metadata": {"k": 1}}\n\n{"content": "eight"}\n'
    )
    seven, eight = read_any(path, source="a")
    assert seven == Document("7", "seven", "x", {"k": 1})
    assert (eight.text, eight.source) == ("eight", "a")


def test_bad_lines_are_reported_and_good_ones_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n{"text": \n[1]\n{"title": "no text"}\n\xff\xfe\n{"text": "two"}\n')
    found = list(read_any(path, source="a"))
    assert [one.text for one in found if isinstance(one, Document)] == ["one", "two"]
    assert [one.reason.split(" ")[1] for one in found if isinstance(one, Damage)] == ["2", "3", "4", "5"]


def test_a_truncated_gzip_keeps_whole_lines_and_reports_the_rest(tmp_path):
    lines = b"".join(json.dumps({"text": f"line {n} {'word ' * n}"}).encode() + b"\n" for n in range(400))
    path = tmp_path / "a.jsonl.gz"
    packed = gzip.compress(lines)
    path.write_bytes(packed[: len(packed) // 2])
    *documents, damage = read_any(path, source="a")
    assert isinstance(damage, Damage)
    assert len(documents) > 50
    assert all(isinstance(one, Document) for one in documents)


def test_a_long_text_is_cut_at_paragraphs_and_nothing_is_lost(tmp_path):
    text = "\n\n".join(f"Paragraph {n} has some words." for n in range(300))
    (tmp_path / "book.txt").write_text(text)
    documents = list(read_any(tmp_path / "book.txt", source="book", longest=1000))
    assert len(documents) > 5
    assert max(len(document.text) for document in documents) <= 1000
    assert "\n\n".join(document.text for document in documents) == text
    assert len({document.id for document in documents}) == len(documents)


@pytest.mark.parametrize("content", [b"", b"   \n\n ", bytes(range(256)) * 40])
def test_a_text_file_without_text_is_damage(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    (damage,) = read_any(tmp_path / "a.txt", source="a")
    assert isinstance(damage, Damage)


def test_pages_keep_their_address_and_are_marked_as_html(tmp_path):
    write_warc(tmp_path / "a.warc", [Page("https://b.org/x", "text/html", "utf-8", b"<p>hi</p>")])
    (page,) = read_any(tmp_path / "a.warc", source="a")
    assert page.metadata["url"] == "https://b.org/x"
    assert page.metadata[RAW] == "html"
    assert page.source == "a"


def test_files_are_found_at_any_depth_in_a_fixed_order(tmp_path):
    for name in ("b.txt", "a/c.md", "a/b/d.JSONL.GZ", "a/e.pdf", "a/.hidden.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [p.name for p in input_files(tmp_path)] == ["d.JSONL.GZ", "c.md", "b.txt"]


def test_nothing_to_read_is_an_error_that_names_the_path(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError, match=str(path)):
            input_files(path)
