"""Laws of listing: every readable file of a messy folder has a name and a source; the others are reported."""

import gzip
import json
import os

import pytest

from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.corpus.document import Document
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.pipeline import curate
from trivium.corpus.publish.store import read_documents
from trivium.corpus.read.files import input_files, list_files, relative_name, source_of, told_endings
from trivium.corpus.read.read import read_any
from trivium.errors import DataError


def write(path, text="Some words."):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def names(folder):
    return [path.relative_to(folder).as_posix() for path in input_files(folder)]


def test_folders_behind_links_are_read_and_links_in_a_circle_end(tmp_path):
    corpus, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    write(corpus / "a" / "x.txt")
    write(elsewhere / "deep" / "y.jsonl")
    (corpus / "linked").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(corpus)
    (corpus / "a" / "self").symlink_to(corpus / "a")
    (corpus / "itself.txt").symlink_to(corpus / "itself.txt")
    assert names(corpus) == ["a/x.txt", "itself.txt", "linked/deep/y.jsonl"]


def test_hidden_files_and_folders_are_not_read(tmp_path):
    for name in ("a.txt", ".b.txt", ".git/c.txt", "d/.ipynb_checkpoints/e.md", "d/f.md"):
        write(tmp_path / name)
    assert names(tmp_path) == ["a.txt", "d/f.md"]
    url = f"file://{tmp_path}"
    assert [relative_name(file, url) for file in input_files(url)] == ["a.txt", "d/f.md"]


def test_what_is_of_another_kind_is_counted_by_its_ending_and_told(tmp_path):
    for name in ("a.txt", "b.pdf", "c.PDF", "d.jsonld", "e.tar.gz", "f.csv.xz", "README"):
        write(tmp_path / name)
    found = list_files(tmp_path)
    assert [path.name for path in found.files] == ["a.txt"]
    assert found.others == {".pdf": 2, ".jsonld": 1, ".tar.gz": 1, ".csv.xz": 1, "without an ending": 1}
    assert told_endings(found.others).startswith("2 .pdf, 1 .csv.xz, ")
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"it has 2 \.pdf"):
        list_files(tmp_path)


def test_pipes_are_not_opened_and_told(tmp_path):
    write(tmp_path / "a.txt")
    os.mkfifo(tmp_path / "b.txt")
    (tmp_path / "c.txt").symlink_to(tmp_path / "b.txt")
    found = list_files(tmp_path)
    assert [path.name for path in found.files] == ["a.txt"]
    assert told_endings(found.others) == "2 pipe or device"
    with pytest.raises(DataError, match="is a pipe or device"):
        list_files(tmp_path / "b.txt")


def test_a_harvest_tells_what_it_did_not_read(tmp_path):
    write(tmp_path / "mine" / "a.txt", "Words. " * 200)
    write(tmp_path / "mine" / "b.docx")
    (tmp_path / "raw").mkdir()
    found = harvest(HarvestConfig(), tmp_path / "raw", seed=1, corpus=tmp_path / "mine")
    assert found["not_read"] == {".docx": 1} and found["files"] == 1


@pytest.mark.parametrize("name", ["x.json.gz", "x.ndjson", "x.ndjson.gz"])
def test_lines_of_json_have_several_names(tmp_path, name):
    line = json.dumps({"text": "Some words."}).encode() + b"\n"
    (tmp_path / name).write_bytes(gzip.compress(line * 2) if name.endswith(".gz") else line * 2)
    (path,) = input_files(tmp_path)
    assert [document.text for document in read_any(path, source="s")] == ["Some words."] * 2


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("books/b.txt", "books"),
        ("books/deep/b.jsonl", "books"),
        ("wiki.jsonl.gz", "wiki"),
        ("c4-train.00000-of-01024.json.gz", "c4-train"),
        ("train-00000-of-01024.parquet", "train"),
        ("shard_000123.jsonl.zst", "shard"),
        ("part-00007-2b8c-c000.parquet", "part-2b8c-c000"),
        ("CC-MAIN-20201123153826-20201123183826-00639.warc.gz", "CC-MAIN"),
        ("wiki-20220301.jsonl", "wiki-20220301"),
        ("gpt-2.jsonl", "gpt-2"),
        ("0007.parquet", "corpus"),
        ("a novel.txt", "corpus"),
        ("Notes.MD", "corpus"),
    ],
)
def test_a_file_belongs_to_the_source_that_its_place_or_its_name_says(tmp_path, name, source):
    corpus = tmp_path / "corpus"
    assert source_of(corpus / name, corpus) == source
    assert source_of(f"s3://bucket/corpus/{name}", "s3://bucket/corpus") == source


def test_a_file_that_is_the_corpus_is_a_source_by_its_own_name(tmp_path):
    assert source_of(tmp_path / "a novel.txt", tmp_path / "a novel.txt") == "a novel"
    assert source_of(tmp_path / "00.jsonl", tmp_path / "00.jsonl") == "00"


def test_names_that_are_no_utf8_or_odd_are_harvested_and_curated(tmp_path):
    mine = tmp_path / "mine"
    text = "It was the best of times, and the people of the city have said so with that in mind. "
    for folder, name in ((b"caf\xe9", b"a.txt"), (b"caf\xe9", b"b \xff c.jsonl"), ("新闻".encode(), b"d\n.md")):
        place = mine / os.fsdecode(folder) / os.fsdecode(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        body = " ".join(f"{text}Number {name!r} {n} {n * 7}." for n in range(40))
        place.write_text(json.dumps({"text": body}) + "\n" if name.endswith(b"jsonl") else body, encoding="utf-8")
    (tmp_path / "raw").mkdir()
    (tmp_path / "out").mkdir()
    found = harvest(HarvestConfig(heldout_limit=0), tmp_path / "raw", seed=1, corpus=tmp_path / "mine")
    assert found["files"] == 3 and not found["quarantined"]
    sources = json.loads((tmp_path / "raw" / "sources.json").read_text())
    assert {entry["source"] for entry in sources} == {"caf\ufffd", "新闻"}
    curate(CurateConfig(filters=()), tmp_path / "raw", tmp_path / "out", seed=1)
    kept = list(read_documents(tmp_path / "out" / "documents"))
    kept += list(read_documents(tmp_path / "raw" / "heldout"))
    assert {document.source for document in kept} == {"caf\ufffd", "新闻"}
    assert all(isinstance(document, Document) for document in kept) and len(kept) == 3


def test_a_folder_that_cannot_be_looked_into_is_an_error_that_names_it(tmp_path, monkeypatch):
    write(tmp_path / "a.txt")
    write(tmp_path / "closed" / "b.txt")
    real = os.scandir

    def scandir(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match="closed cannot be looked into"):
        list_files(tmp_path)


def test_links_between_folders_are_bounded(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}").mkdir()
        for name in "ab":
            (tmp_path / f"{number}" / name).symlink_to(tmp_path / f"{number + 1}")
    (tmp_path / "30").mkdir()
    (tmp_path / "30" / "text.txt").write_text("a")
    with pytest.raises(DataError, match="is reached in more than 100 ways, through links.*remove"):
        list_files(tmp_path / "0")
    assert len(list_files(tmp_path / "25").files) == 2**5, "some ways are allowed"


def test_depth_of_folders_is_bounded(tmp_path):
    deep = tmp_path
    for _ in range(200):
        deep = deep / "a"
    deep.mkdir(parents=True)
    (deep / "text.txt").write_text("a")
    assert len(list_files(tmp_path).files) == 1
    (deep / "a").mkdir()
    with pytest.raises(DataError, match="lies more than 200 folders deep in the corpus; move it up"):
        list_files(tmp_path)
