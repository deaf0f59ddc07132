"""Laws of kinds of files: the same texts are the same corpus, and long texts are cut by one rule."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.corpus.config import CurateConfig, HarvestConfig, ReadConfig
from trivium.corpus.document import Document
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.pipeline import curate
from trivium.corpus.publish.store import read_documents
from trivium.corpus.publish.views import loss_lines
from trivium.corpus.read.cutting import CUT_FROM, paragraphs_of
from trivium.corpus.read.read import read_any
from trivium.seeds import generator_for
from trivium.tokens.split import survey

WORDS = "the river and a house that was of stone to be seen with many people have long been there".split()


def prose(seed, paragraphs, end="\n"):
    generator = generator_for(seed, "formats")
    made = []
    for _ in range(paragraphs):
        sentences = [
            " ".join(WORDS[int(n)] for n in generator.integers(len(WORDS), size=12)).capitalize() + "."
            for _ in range(int(generator.integers(2, 9)))
        ]
        made.append(f"Part {int(generator.integers(10**9))} begins. " + " ".join(sentences))
    return (2 * end).join(made)


BOOKS = [prose(1, 90), prose(2, 60, end="\r\n"), prose(3, 1)]


def wet(texts):
    head = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b\r\n\r\n"
    return b"".join(head % (len(text.encode()), text.encode()) for text in texts)


def write(folder, kind):
    """The books as files of this kind, in a folder of the same name."""
    into = folder / kind / "books"
    into.mkdir(parents=True)
    rows = [{"id": f"row {n}", "text": text} for n, text in enumerate(BOOKS)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind in (".txt", ".md", ".txt.gz"):
        for n, text in enumerate(BOOKS):
            data = text.encode()
            (into / f"{n}{kind}").write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
    elif kind == ".parquet":
        texts = pa.array([text.encode() for text in BOOKS], pa.binary())
        pq.write_table(pa.table({"text": texts, "n": [1, 2, 3]}), into / "a.parquet")
    else:
        data = {
            ".jsonl": lines,
            ".jsonl.gz": gzip.compress(lines),
            ".json": json.dumps(rows, indent=1).encode(),
            ".warc.wet": wet(BOOKS),
        }[kind]
        (into / f"a{kind}").write_bytes(data)
    return folder / kind


def corpus_of(folder, kind):
    source = write(folder / "in", kind)
    raw, out = folder / f"raw{kind}", folder / f"out{kind}"
    raw.mkdir()
    out.mkdir()
    told = harvest(HarvestConfig(longest=3000, evaluation_items=5), raw, seed=1, corpus=source)
    funnel = curate(CurateConfig(quality={"words_low": 10}), raw, out, seed=1)["funnel"]
    heldout = [(d.source, d.text) for d in read_documents(raw / "heldout")]
    kept = [(d.source, d.text) for d in read_documents(out / "documents")]
    found = survey(out / "documents", seed=1)
    counts = {name: told[name] for name in ("documents", "added", "text_bytes", "heldout", "evaluation_items")}
    return counts, funnel, heldout, kept, found.draws.tolist()


@pytest.mark.parametrize("kind", [".jsonl", ".parquet", ".warc.wet"])
def test_the_same_texts_are_the_same_corpus_in_every_kind_of_file(tmp_path, kind):
    as_text = corpus_of(tmp_path, ".txt")
    assert corpus_of(tmp_path, kind) == as_text
    counts, funnel, heldout, kept, _ = as_text
    assert len(kept) > 10 and heldout and counts["added"] == counts["documents"] + len(heldout) - len(BOOKS)
    assert loss_lines(funnel) == []


@pytest.mark.parametrize("kind", [".md", ".txt.gz", ".jsonl", ".jsonl.gz", ".json", ".parquet", ".warc.wet"])
def test_long_texts_are_cut_alike_in_every_kind_of_file(tmp_path, kind):
    def texts(folder):
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        found = [d for path in paths for d in read_any(path, source="s", longest=3000)]
        assert len({d.id for d in found}) == len(found)
        return [d.text.replace("\r\n", "\n") for d in found], [
            d.metadata[CUT_FROM]["piece"] for d in found if CUT_FROM in d.metadata
        ]

    found, pieces = texts(write(tmp_path, kind))
    assert (found, pieces) == texts(write(tmp_path, ".txt"))
    assert "".join(found).split() == "".join(found).split()
    assert max(map(len, found)) <= 3000 and len(pieces) == len(found) - 1
    assert "\n\n".join(found) == "\n\n".join(BOOKS).replace("\r\n", "\n")


def test_a_book_in_one_row_is_a_corpus_by_default(tmp_path):
    book = prose(4, 2200)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(json.dumps({"text": book}) + "\n")
    (tmp_path / "raw").mkdir()
    (tmp_path / "out").mkdir()
    told = harvest(HarvestConfig(), tmp_path / "raw", seed=1, corpus=tmp_path / "in")
    funnel = curate(CurateConfig(), tmp_path / "raw", tmp_path / "out", seed=1)["funnel"]
    assert len(book.split()) > 100_000 and told["heldout"] < 0.2 * told["documents"]
    assert funnel[-1]["bytes"] > 0.9 * told["text_bytes"]


UNBROKEN = {
    "lines": ("a line of some words\n" * 5000, "\n"),
    "sentences": ("A sentence of words. " * 5000, ". "),
    "words": ("word " * 20_000, " "),
    "Chinese": ("这是一个句子。" * 10_000, "。"),
    "letters": ("x" * 100_000, ""),
}


@pytest.mark.parametrize("kind", UNBROKEN)
def test_a_text_without_blank_lines_is_cut_where_it_harms_least(kind):
    text, sign = UNBROKEN[kind]
    pieces = list(paragraphs_of(text, longest=8000))
    assert max(map(len, pieces[:-1])) <= 8000 and len(pieces[-1]) <= 16_384
    assert "".join(pieces).replace("\n", "") == text.replace("\n", "")
    if sign.strip():
        assert all(piece.rstrip().endswith(sign.strip()) for piece in pieces)
    assert min(map(len, pieces[:-1])) > 7900


def test_a_paragraph_that_is_only_a_little_too_long_stays_whole():
    text = "short\n\n" + "word " * 2000 + "\n\nshort"
    assert [len(piece) for piece in paragraphs_of(text, longest=8000)] == [5, 10_000, 5]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.sampled_from(["word ", "x" * 50, "\n", "\n\n", "End. ", "。", "y" * 20_000]), max_size=20),
    st.integers(5, 300),
    st.integers(100, 30_000),
)
def test_where_a_text_is_cut_does_not_depend_on_how_it_is_read(parts, longest, block):
    text = "".join(parts)
    whole = list(paragraphs_of(text, longest=longest))
    assert "".join(whole).replace("\n", "") == text.replace("\n", "")
    pending, pieces = "", []
    for start in range(0, max(len(text), 1), block):
        *done, pending = paragraphs_of(pending + text[start : start + block], longest=longest)
        pieces += done
    assert [*pieces, pending] == whole


def test_a_row_that_is_not_cut_stays_as_it_is(tmp_path):
    row = {"id": "a", "text": "one\r\n\r\ntwo", "cut_from": "mine"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert list(read_any(tmp_path / "a.jsonl", source="s", longest=100)) == [
        Document("a", row["text"], "s", {"cut_from": "mine"})
    ]


def funnel_of(tmp_path, texts, **settings):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "raw").mkdir()
    (tmp_path / "out").mkdir()
    config = HarvestConfig(longest=10**9, evaluation_items=0, read=ReadConfig())
    harvest(config, tmp_path / "raw", seed=1, corpus=tmp_path / "in")
    return curate(CurateConfig(**settings), tmp_path / "raw", tmp_path / "out", seed=1)["funnel"]


def test_a_large_loss_to_one_reason_is_said_with_the_setting_that_changes_it(tmp_path):
    long, short = [prose(n, 40) for n in range(5, 8)], [prose(n, 6) for n in range(10, 40)]
    funnel = funnel_of(tmp_path, [*long, *short], quality={"words_high": 1000})
    (line,) = loss_lines(funnel)
    assert "dropped by 'quality': over 1000 words" in line
    assert line.endswith("change this with --set curate.quality.words_high=1000000000")
    (quality,) = [step for step in funnel if step["step"] == "quality"]
    whole = quality["bytes"] + sum(quality["dropped_bytes"].values())
    assert f"{100 * quality['dropped_bytes']['over 1000 words'] / whole:.0f} % of the text" in line
