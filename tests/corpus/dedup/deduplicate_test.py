"""`corpus step dedup`: a snapshot compared with an index loses what a run over everything loses; exact repetition."""

import contextlib
import shutil
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus.config import CurateConfig, DedupConfig
from trivium.corpus.dedup import deduplicate as command
from trivium.corpus.dedup.deduplicate import (
    NEAR_NEW,
    NEAR_OLD,
    NOTHING_NEW,
    deduplicate,
    without_equal_texts,
    without_repeated,
)
from trivium.corpus.dedup.index import INDEX, _similarities, read_index
from trivium.corpus.document import Document
from trivium.corpus.kernels.shingles import ShingleSets, jaccard_of_pairs
from trivium.corpus.publish.store import read_documents, write_documents
from trivium.corpus.publish.views import rejects_of
from trivium.corpus.read.files import Input
from trivium.corpus.steps import Reject, Tally
from trivium.errors import DataError
from trivium.seeds import generator_for

CONFIG = CurateConfig()


def corpus(seed, documents=90):
    """Texts of 60 words, two in three of them made from another by changing some words: chains and crowds."""
    generator = generator_for(seed, "snapshots")
    words = [f"word{n}" for n in range(3000)]
    texts = []
    for _ in range(documents):
        if texts and generator.random() < 0.66:
            text = list(texts[int(generator.integers(len(texts)))])
            for place in generator.integers(60, size=int(generator.integers(0, 3))):
                text[place] = str(generator.choice(words))
        else:
            text = generator.choice(words, size=60).tolist()
        texts.append(text)
    order = generator.permutation(documents)
    return [Document(f"d{n}", " ".join(texts[n]), "ab"[n % 2]) for n in order.tolist()]


def crowd():
    """More copies in a bucket than there are pairs for."""
    texts = [" ".join(f"w{(n % 2) * 500 + i}" for i in range(50)) for n in range(160)]
    return [Document(f"c{n}", text + f" end{n % 3}", "s") for n, text in enumerate(texts)]


class Bench:
    """Snapshots on disk, deduplicated into numbered folders."""

    def __init__(self, root):
        self.root, self.index, self.count = root, root / "index", 0

    def store(self, name, documents):
        write_documents(self.root / name, documents)
        return self.root / name

    def run(self, source, index=None, config=CONFIG, by="near", seed=1):
        self.count += 1
        out = self.root / f"out{self.count}"
        out.mkdir()
        work = self.root / f"work{self.count}"
        return out, deduplicate(config, Input(source), out, by=by, seed=seed, work=work, index=index)

    def kept(self, source, index=None, **more):
        out, _ = self.run(source, index, **more)
        return [d.id for d in read_documents(out / "documents")]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.mark.parametrize(
    ("documents", "ends"),
    [*((corpus(seed), (50, 90)) for seed in range(6)), (corpus(99, 120), (40, 80, 120)), (crowd(), (70, 160))],
)
def test_each_snapshot_loses_what_one_run_over_it_and_all_before_loses(bench, documents, ends):
    for number, (first, end) in enumerate(zip((0, *ends), ends, strict=False)):
        together = set(bench.kept(bench.store(f"to{number}", documents[:end])))
        kept = bench.kept(bench.store(f"s{number}", documents[first:end]), bench.index)
        assert kept == [d.id for d in documents[first:end] if d.id in together]
        assert len(kept) < end - first


def test_snapshot_that_is_run_again_changes_neither_its_output_nor_the_index(bench):
    documents = corpus(5)
    old, new = bench.store("old", documents[:50]), bench.store("new", documents[50:])
    first, second = bench.kept(old, bench.index), bench.kept(new, bench.index)
    before = (bench.index / INDEX).read_bytes()
    assert (bench.kept(old, bench.index), bench.kept(new, bench.index)) == (first, second)
    assert (bench.index / INDEX).read_bytes() == before
    assert len(read_index(bench.index, CONFIG.dedup, seed=1)) == 2


def test_every_reject_names_the_document_it_repeats_and_the_funnel_counts_it(bench):
    documents = corpus(3)
    bench.kept(bench.store("old", documents[:50]), bench.index)
    out, result = bench.run(bench.store("new", documents[50:]), bench.index)
    rejects = list(rejects_of(out))
    read, tally = result["funnel"]
    assert read["documents"] == 40 == tally["documents"] + len(rejects)
    assert sum(tally["dropped"].values()) == len(rejects)
    old = {d.id for d in documents[:50]}
    for row in rejects:
        near = row["metadata"]["near"]
        assert row["reason"] == (NEAR_OLD if near["survivor"] in old else NEAR_NEW)
        assert near["jaccard"] >= 0.8
    assert {row["reason"] for row in rejects} == {NEAR_OLD, NEAR_NEW}


@pytest.mark.parametrize("by", ["near", "text"])
@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({}, "first"),
        ({"priority": ("books",)}, "book"),
        ({"priority": ("books",), "quality": "score.fine"}, "better book"),
        ({"quality": "score.fine"}, "better book"),
    ],
)
def test_best_source_then_best_figure_survives(bench, by, config, kept):
    text = " ".join(f"w{n}" for n in range(80))
    ends = "xyz" if by == "near" else "   "
    documents = [
        Document("first", text, "crawl", {"score": {"fine": 0.1}}),
        Document("book", f"{text} {ends[0]}", "books", {"score": {"fine": 0.0}}),
        Document("better book", f"{text} {ends[1]}", "books", {"score": {"fine": 0.5}}),
        Document("no figure", f"{text} {ends[2]}", "books"),
    ]
    assert bench.kept(bench.store("s", documents), config=CurateConfig(dedup=config), by=by) == [kept]
    rows = rejects_of(bench.root / "out1")
    assert {row["metadata"]["near" if by == "near" else "same"]["survivor"] for row in rows} == {kept}


def test_index_with_other_keys_and_damaged_index_are_refused(bench):
    store = bench.store("s", corpus(1)[:20])
    bench.kept(store, bench.index)
    for more in ({"config": CurateConfig(dedup={"bands": 10})}, {"config": CurateConfig(dedup={"shingle": 4})}):
        with pytest.raises(DataError, match=r"index\.json was made with"):
            bench.kept(store, bench.index, **more)
    with pytest.raises(DataError, match="seed"):
        bench.kept(store, bench.index, seed=2)
    assert bench.kept(store, bench.index, config=CurateConfig(dedup={"threshold": 0.99})), "keys are the same"
    (bench.index / INDEX).write_text("{")
    with pytest.raises(DataError, match="no index of documents"):
        read_index(bench.index, DedupConfig(), seed=1)


def test_keys_written_before_a_kill_are_used(bench, monkeypatch):
    source, written, real = bench.store("s", corpus(4)), [], command.write_part
    monkeypatch.setattr(command, "_DOCUMENTS_IN_PART", 20)

    def write_part(folder, *rest, **more):
        if len(written) == 3:
            written.append("kill")
            raise KeyboardInterrupt
        written.append(folder.name)
        real(folder, *rest, **more)

    expected = bench.kept(source)
    monkeypatch.setattr(command, "write_part", write_part)
    out = bench.root / "killed"
    for _ in range(3):  # killed, resumed, and again after the output was lost
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        with contextlib.suppress(KeyboardInterrupt):
            deduplicate(CONFIG, Input(source), out, by="near", seed=1, work=bench.root / "work")
    assert written == ["00000", "00001", "00002", "kill", "00003", "00004"]
    assert [d.id for d in read_documents(out / "documents")] == expected


def test_empty_snapshot_is_a_snapshot(bench):
    assert bench.kept(bench.store("empty", []), bench.index) == []
    store = bench.store("s", corpus(6)[:10])
    assert bench.kept(store, bench.index) == bench.kept(store)
    assert len(read_index(bench.index, CONFIG.dedup, seed=1)) == 2


class PartInMemory(NamedTuple):
    """Some of the documents whose shingle sets are `whole`."""

    whole: ShingleSets
    first: int
    documents: int

    def sets(self):
        return ShingleSets(self.whole.hashes, self.whole.offsets[self.first : self.first + self.documents + 1])


@pytest.mark.timeout(60)  # it takes minutes if all pairs are searched for each pair of parts
def test_similarities_of_an_index_in_many_parts_are_those_of_one_part():
    generator = generator_for(1, "similarities")
    sizes = generator.integers(1, 6, size=150)
    ends = np.cumsum(sizes)
    hashes = np.sort(generator.permuted(np.tile(np.arange(9), (ends[-1], 1)), axis=1)[:, :4])
    whole = ShingleSets(hashes.astype(np.uint64).ravel(), np.arange(0, hashes.size + 1, 4))
    parts = [PartInMemory(whole, end - size, size) for end, size in zip(ends, sizes, strict=True)]
    pairs = generator.integers(ends[-1], size=(500_000, 2))
    for some in (pairs[:0], pairs):
        assert np.array_equal(_similarities(parts, some), jaccard_of_pairs(whole, whole, some))


LINES = st.lists(
    st.sampled_from(["One line here now.", "one  line, here NOW", "Another line of it.", "short", "", "---"])
)


def documents_of(texts):
    return [Document(f"d{n}", text, "s") for n, text in enumerate(texts)]


def test_first_of_equal_texts_stays_and_equal_ids_do_not_matter():
    tally, documents = Tally("by text"), documents_of(["A b, c.", "a B c", "a b d", "A b, c."])
    results = list(without_equal_texts(lambda: documents, DedupConfig(), tally))
    assert [isinstance(r, Reject) for r in results] == [False, True, False, True]
    assert (tally.documents, sum(tally.dropped.values())) == (2, 2)
    assert [r.document.metadata for r in results if isinstance(r, Reject)] == [{"same": {"survivor": "d0"}}] * 2
    documents = [Document("0", "A text of one file.", "a"), Document("0", "A text of another.", "b")]
    assert list(without_equal_texts(lambda: documents, DedupConfig(), tally)) == documents


@given(st.lists(LINES, max_size=8))
def test_no_long_line_occurs_twice_and_none_is_lost(texts):
    def words_of(lines):
        return [tuple("".join(c if c.isalnum() else " " for c in line.lower()).split()) for line in lines]

    tally = Tally("by lines")
    results = list(without_repeated(documents_of(["\n".join(lines) for lines in texts]), "lines", tally, words=3))
    assert len(results) == len(texts) == tally.documents + sum(tally.dropped.values())
    kept = words_of(line for r in results if isinstance(r, Document) for line in r.text.split("\n"))
    long = [words for words in kept if len(words) >= 3]
    assert len(long) == len(set(long))
    assert set(long) == {words for words in words_of(line for lines in texts for line in lines) if len(words) >= 3}


def test_lines_with_few_words_stay():
    text = "One line of five words.\n* * * * *\nAnother line of five words.\n- - x - - y -\n| 1 | 2 |"
    first, second = without_repeated(documents_of([text, text]), "lines", Tally("by lines"), words=3)
    assert first.text == text
    assert second.text == "* * * * *\n- - x - - y -\n| 1 | 2 |"


def test_document_notes_removed_paragraphs_and_is_dropped_if_nothing_is_left():
    texts = [
        "A first paragraph of words.\n\nA second one of them.",
        "a second one of them\n\nNew words, these are.",
        "A first paragraph of words!",
    ]
    first, second, third = without_repeated(documents_of(texts), "paragraphs", Tally("by paragraphs"), words=3)
    assert (first.text, first.metadata) == (texts[0], {})
    assert (second.text, second.metadata) == ("New words, these are.", {"repeated": {"paragraphs": 1}})
    assert isinstance(third, Reject) and third.reason == NOTHING_NEW
