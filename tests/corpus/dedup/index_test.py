"""Laws of the index: a snapshot against what was seen before loses what a run over everything loses."""

import contextlib
import shutil
from typing import NamedTuple

import numpy as np
import pytest

from trivium.corpus.config import CurateConfig, DedupConfig
from trivium.corpus.dedup.index import INDEX, _similarities, read_index
from trivium.corpus.deduplicate import NEAR_NEW, NEAR_OLD, deduplicate
from trivium.corpus.document import Document
from trivium.corpus.files import Input
from trivium.corpus.kernels.shingles import ShingleSets, jaccard_of_pairs
from trivium.corpus.publish.views import rejects_of
from trivium.corpus.store import read_documents, write_documents
from trivium.errors import DataError
from trivium.seeds import generator_for

CONFIG = CurateConfig()


def corpus(seed, documents=90):
    """Texts of 60 words, two in three of them made from another by changing some words: chains and crowds."""
    generator = generator_for(seed, "snapshots")
    words = [f"word{n}" for n in range(3000)]
    texts = []
    for number in range(documents):
        if texts and generator.random() < 0.66:
            text = list(texts[int(generator.integers(len(texts)))])
            for place in generator.integers(60, size=int(generator.integers(0, 3))):
                text[place] = str(generator.choice(words))
        else:
            text = generator.choice(words, size=60).tolist()
        texts.append(text)
    order = generator.permutation(documents)
    return [Document(f"d{n}", " ".join(texts[n]), "ab"[n % 2]) for n in order.tolist()]


class Bench:
    """Snapshots on disk, deduplicated into numbered folders."""

    def __init__(self, root):
        self.root, self.count = root, 0

    def store(self, name, documents):
        write_documents(self.root / name, documents)
        return self.root / name

    def run(self, source, index=None, config=CONFIG, by="near", seed=1):
        self.count += 1
        out = self.root / f"out{self.count}"
        out.mkdir()
        found = deduplicate(
            config, Input(source), out, by=by, seed=seed, work=self.root / f"work{self.count}", index=index
        )
        return out, found

    def kept(self, source, index=None, **more):
        out, _ = self.run(source, index, **more)
        return [d.id for d in read_documents(out / "documents")]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.mark.parametrize("seed", range(12))
def test_a_new_snapshot_loses_exactly_what_a_run_over_old_and_new_loses_of_it(bench, seed):
    everything = corpus(seed)
    old, new = everything[:50], everything[50:]
    joint = set(bench.kept(bench.store("both", everything)))
    index = bench.root / "index"
    bench.kept(bench.store("old", old), index)
    kept = bench.kept(bench.store("new", new), index)
    assert kept == [d.id for d in new if d.id in joint]
    assert 0 < len(kept) < len(new)


def test_each_of_three_snapshots_loses_what_one_run_over_it_and_all_before_loses(bench):
    everything = corpus(99, 120)
    index = bench.root / "index"
    for number, (first, end) in enumerate(((0, 40), (40, 80), (80, 120))):
        joint = set(bench.kept(bench.store(f"to{number}", everything[:end])))
        kept = bench.kept(bench.store(f"s{number}", everything[first:end]), index)
        assert kept == [d.id for d in everything[first:end] if d.id in joint]


def test_crowds_of_one_page_are_no_exception(bench):
    """More copies in a bucket than pairs are made for."""
    texts = [" ".join(f"w{(n % 2) * 500 + i}" for i in range(50)) for n in range(160)]
    everything = [Document(f"c{n}", text + f" end{n % 3}", "s") for n, text in enumerate(texts)]
    joint = set(bench.kept(bench.store("both", everything)))
    index = bench.root / "index"
    bench.kept(bench.store("old", everything[:70]), index)
    kept = bench.kept(bench.store("new", everything[70:]), index)
    assert kept == [d.id for d in everything[70:] if d.id in joint] == []


def test_a_snapshot_run_again_changes_neither_its_output_nor_the_index(bench):
    everything = corpus(5)
    index = bench.root / "index"
    source = bench.store("old", everything[:50])
    first = bench.kept(source, index)
    later = bench.kept(bench.store("new", everything[50:]), index)
    before = (index / INDEX).read_bytes()
    assert bench.kept(source, index) == first
    assert bench.kept(bench.root / "new", index) == later
    assert (index / INDEX).read_bytes() == before
    assert len(read_index(index, CONFIG.dedup, seed=1)) == 2


def test_every_reject_says_whom_it_repeats_and_the_funnel_counts_them(bench):
    everything = corpus(3)
    index = bench.root / "index"
    bench.kept(bench.store("old", everything[:50]), index)
    out, found = bench.run(bench.store("new", everything[50:]), index)
    rejects = list(rejects_of(out))
    read, tally = found["funnel"]
    assert read["documents"] == 40 == tally["documents"] + len(rejects)
    assert sum(tally["dropped"].values()) == len(rejects)
    old = {d.id for d in everything[:50]}
    for row in rejects:
        near = row["metadata"]["near"]
        assert row["reason"] == (NEAR_OLD if near["survivor"] in old else NEAR_NEW)
        assert near["jaccard"] >= 0.8
    assert {row["reason"] for row in rejects} == {NEAR_OLD, NEAR_NEW}


@pytest.mark.parametrize("by", ["near", "text"])
def test_among_new_documents_the_best_source_then_the_best_figure_survives(bench, by):
    text = " ".join(f"w{n}" for n in range(80))
    end = "xyz" if by == "near" else "   "
    made = [
        Document("first", text, "crawl", {"score": {"fine": 0.1}}),
        Document("book", f"{text} {end[0]}", "books", {"score": {"fine": 0.0}}),
        Document("better book", f"{text} {end[1]}", "books", {"score": {"fine": 0.5}}),
        Document("no figure", f"{text} {end[2]}", "books"),
    ]
    store = bench.store("s", made)
    assert bench.kept(store, by=by) == ["first"]
    for config, kept in (
        ({"priority": ("books",)}, "book"),
        ({"priority": ("books",), "quality": "score.fine"}, "better book"),
        ({"quality": "score.fine"}, "better book"),
    ):
        assert bench.kept(store, config=CurateConfig(dedup=config), by=by) == [kept]
        rejects = rejects_of(bench.root / f"out{bench.count}")
        assert {row["metadata"]["near" if by == "near" else "same"]["survivor"] for row in rejects} == {kept}


def test_an_index_of_other_keys_and_a_damaged_one_are_refused(bench):
    index = bench.root / "index"
    store = bench.store("s", corpus(1)[:20])
    bench.kept(store, index)
    for other in ({"bands": 10}, {"shingle": 4}):
        with pytest.raises(DataError, match=r"index\.json was made with"):
            bench.kept(store, index, config=CurateConfig(dedup=other))
    with pytest.raises(DataError, match="seed"):
        bench.kept(store, index, seed=2)
    # what is compared, but not the keys, may change
    assert bench.kept(store, index, config=CurateConfig(dedup={"threshold": 0.99}))
    (index / INDEX).write_text("{")
    with pytest.raises(DataError, match="no index of documents"):
        read_index(index, DedupConfig(), seed=1)


def test_keys_made_before_a_kill_are_not_made_again(bench, monkeypatch):
    from trivium.corpus import deduplicate as verb

    source, made, real = bench.store("s", corpus(4)), [], verb.write_part
    monkeypatch.setattr(verb, "_TOGETHER", 20)

    def write_part(folder, *rest, **more):
        if len(made) == 3:
            made.append("kill")
            raise KeyboardInterrupt
        made.append(folder.name)
        real(folder, *rest, **more)

    whole = bench.kept(source)
    monkeypatch.setattr(verb, "write_part", write_part)
    out = bench.root / "killed"
    out.mkdir()
    for _ in range(2):
        with contextlib.suppress(KeyboardInterrupt):
            deduplicate(CONFIG, Input(source), out, by="near", seed=1, work=bench.root / "work")
    shutil.rmtree(out)  # an output may be lost before it has its name
    out.mkdir()
    deduplicate(CONFIG, Input(source), out, by="near", seed=1, work=bench.root / "work")
    assert made == ["00000", "00001", "00002", "kill", "00003", "00004"]
    assert [d.id for d in read_documents(out / "documents")] == whole


def test_an_empty_snapshot_is_one_too(bench):
    index = bench.root / "index"
    assert bench.kept(bench.store("empty", []), index) == []
    store = bench.store("s", corpus(6)[:10])
    assert bench.kept(store, index) == bench.kept(store)
    assert len(read_index(index, CONFIG.dedup, seed=1)) == 2


class PartInMemory(NamedTuple):
    """Some of the documents whose shingle sets are `whole`."""

    whole: ShingleSets
    first: int
    documents: int

    def sets(self):
        return ShingleSets(self.whole.hashes, self.whole.offsets[self.first : self.first + self.documents + 1])


@pytest.mark.timeout(60)  # minutes, where each pair of parts looks through all pairs of documents
def test_the_similarities_of_an_index_in_many_parts_are_those_of_one_part():
    generator = generator_for(1, "similarities")
    sizes = generator.integers(1, 6, size=150)
    ends = np.cumsum(sizes)
    hashes = np.sort(generator.permuted(np.tile(np.arange(9), (ends[-1], 1)), axis=1)[:, :4])
    whole = ShingleSets(hashes.astype(np.uint64).ravel(), np.arange(0, hashes.size + 1, 4))
    parts = [PartInMemory(whole, end - size, size) for end, size in zip(ends, sizes, strict=True)]
    pairs = generator.integers(ends[-1], size=(500_000, 2))
    for some in (pairs[:0], pairs):
        assert np.array_equal(_similarities(parts, some), jaccard_of_pairs(whole, whole, some))
