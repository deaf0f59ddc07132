"""Laws of looking at a corpus: every document has a history, figures add up, and equality means every byte."""

import gzip
import json
import shutil

import pytest

from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.corpus.dedup.minhash import similar_pairs
from trivium.corpus.document import Document
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.pipeline import curate
from trivium.corpus.publish.store import documents_table, read_documents, write_documents
from trivium.corpus.publish.views import (
    corpus_statistics,
    differences_between,
    history,
    history_lines,
    numbers_in,
    rejects_of,
    statistics_lines,
)
from trivium.errors import DataError

SMALL = HarvestConfig(max_bytes=700_000, packages=("networkx",), evaluation_items=30)


@pytest.fixture(scope="module")
def curated(tmp_path_factory):
    root = tmp_path_factory.mktemp("views")
    (root / "raw").mkdir()
    (root / "out").mkdir()
    harvest(SMALL, root / "raw", seed=11)
    curate(CurateConfig(), root / "raw", root / "out", seed=11)
    return root / "out"


@pytest.mark.broad
def test_every_document_kept_or_dropped_has_a_history_that_says_so(curated):
    for document in list(read_documents(curated / "documents"))[:20]:
        found = history(curated, document.id)
        assert document.text in [one["text"] for one in found["kept"]]
        assert f"{document.id} was kept" in "\n".join(history_lines(found))
    for row in list(rejects_of(curated))[::7]:
        if row["step"] != "read":
            found = history(curated, row["id"])
            assert row in found["dropped"]
            assert row["reason"] in "\n".join(history_lines(found))


@pytest.mark.broad
def test_a_copy_names_its_survivor_and_the_survivor_its_copies(curated):
    row = next(row for row in rejects_of(curated) if row["step"] == "near duplicates")
    assert {"id": row["id"], "jaccard": row["jaccard"]} in history(curated, row["survivor"])["copies"]
    assert {"language", "quality", "repetition"} <= row["metadata"].keys()


def test_pieces_are_found_by_the_id_of_the_whole_and_by_their_own(curated):
    pieces = [d.id for d in read_documents(curated / "documents") if d.id.endswith(("#0", "#1"))]
    whole = pieces[0].split("#")[0]
    assert {one["id"] for one in history(curated, whole)["kept"]} >= {f"{whole}#0", f"{whole}#1"}
    assert [one["id"] for one in history(curated, pieces[0])["kept"]] == [pieces[0]]


def test_an_id_may_hold_what_marks_a_piece(tmp_path):
    texts = {"http://a": {}, "http://a#top": {}, "b#0": {"decontamination": {"of": "b"}}}
    write_documents(tmp_path / "documents", [Document(i, i, "s", m) for i, m in texts.items()])
    row = {"id": "http://a#end", "source": "s", "step": "language", "reason": "language fr"}
    with gzip.open(tmp_path / "rejects.jsonl.gz", "wt") as file:
        file.write(json.dumps(row) + "\n")
    for asked, kept in (("http://a#top", ["http://a#top"]), ("http://a", ["http://a"]), ("b", ["b#0"])):
        assert [one["id"] for one in history(tmp_path, asked)["kept"]] == kept
    assert history(tmp_path, "http://a#end")["dropped"] == [row]


def test_an_id_that_is_nowhere_and_a_folder_without_a_corpus_are_errors(curated, tmp_path):
    with pytest.raises(DataError, match="'nobody'"):
        history(curated, "nobody")
    with pytest.raises(DataError, match="corpus curate"):
        list(rejects_of(tmp_path))
    (tmp_path / "rejects.jsonl.gz").write_bytes((curated / "rejects.jsonl.gz").read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged"):
        list(rejects_of(tmp_path))


def test_statistics_count_what_the_funnel_counts(curated):
    found = corpus_statistics(curated)
    funnel = {entry["step"]: entry for entry in json.loads((curated / "funnel.json").read_text())}
    for step, reasons in found["rejected"].items():
        assert reasons == funnel[step]["dropped"]
    near = sum(funnel["near duplicates"]["dropped"].values())
    assert sum(found["similarities"]) == near == sum(found["similarities"][8:])
    lengths = [len(d.text) for d in read_documents(curated / "documents")]
    extremes = [(v[0], v[-1]) for name, v in found["figures"].items() if name.startswith("characters of")]
    assert (min(low for low, _ in extremes), max(high for _, high in extremes)) == (min(lengths), max(lengths))
    assert len(statistics_lines(found)) > len(found["figures"])
    figures = {"figures": {"characters": [0.01234, 999.5, 11922.4, 993240.0]}, "quantiles": [0, 0.25, 0.5, 1]}
    long = statistics_lines({**figures, "rejected": {}, "similarities": []})[1]
    assert long.split() == ["characters", "0.01234", "999.5", "11,922", "993,240"]


def test_numbers_that_are_no_finite_floats_have_no_distribution():
    metadata = {"n": 10**400, "inf": float("inf"), "nan": float("nan"), "in": {"words": 7, "n": -(10**400)}}
    assert list(numbers_in(metadata)) == [("in.words", 7.0)]


def test_a_corpus_differs_from_none_but_one_with_another_byte(curated, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(curated, other)
    assert differences_between(curated, other) == []
    (other / "funnel.json").write_text("[]")
    assert differences_between(curated, other) == ["funnel.json differs"]
    documents = list(read_documents(curated / "documents"))
    changed = [Document(documents[0].id, documents[0].text + "x", documents[0].source), *documents[2:]]
    write_documents(other / "documents", changed)
    (other / "blend.json").unlink()
    lines = differences_between(curated, other)
    assert f"blend.json is only in {curated}" in lines
    assert any("1 documents with different text" in line for line in lines)
    assert any(f"only in {curated / 'documents'}, such as {documents[1].id}" in line for line in lines)
    with pytest.raises(DataError, match="not a folder"):
        differences_between(curated, tmp_path / "nothing")


def test_no_pair_of_the_corpus_in_memory_is_similar_after_curation_and_the_dropped_ones_are(curated):
    config = CurateConfig().dedup
    kept = documents_table(list(read_documents(curated / "documents")))
    assert len(similar_pairs(kept["text"], config, seed=11)[0]) == 0
    rows = {row["id"]: row for row in rejects_of(curated) if row["step"] == "near duplicates"}
    texts = {d.id: d.text for d in read_documents(curated / "documents")}
    for row in rows.values():
        if row["survivor"] in texts and row["jaccard"] < 1:
            pairs, similarity = similar_pairs(
                documents_table([Document("a", texts[row["survivor"]], ""), Document("b", row["text"], "")])["text"],
                config,
                seed=11,
            )
            assert len(pairs) == 1
            assert round(float(similarity[0]), 4) <= row["jaccard"]
