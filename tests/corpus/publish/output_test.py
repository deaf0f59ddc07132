"""The published corpus: its blend, its scores, and its views."""

import gzip
import json
import shutil

import pytest

from trivium.config import build
from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.corpus.document import Document
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.pipeline import curate
from trivium.corpus.publish.output import blend, score
from trivium.corpus.publish.store import read_documents, write_documents
from trivium.corpus.publish.views import (
    corpus_statistics,
    differences_between,
    history,
    history_lines,
    numbers_in,
    rejects_of,
    statistics_lines,
)
from trivium.errors import ConfigError, DataError

SOURCES = {"a": {"documents": 3, "text_bytes": 300}, "b": {"documents": 1, "text_bytes": 100}}
PASSAGE = "these are the words of a passage that nobody must find in any text that a model has been trained on"


@pytest.mark.parametrize(
    ("weights", "weight", "epochs"), [({}, (0.75, 0.25), (1.0, 1.0)), ({"a": 1, "b": 1}, (0.5, 0.5), (2 / 3, 2.0))]
)
def test_blend_normalises_weights_and_counts_epochs(weights, weight, epochs):
    mixed = blend(SOURCES, weights)
    assert tuple(one["weight"] for one in mixed.values()) == weight
    assert tuple(one["epochs"] for one in mixed.values()) == pytest.approx(epochs)


def test_blend_of_wrong_weights_is_refused():
    with pytest.raises(DataError, match="'c'.*known: a, b"):
        blend(SOURCES, {"c": 1})
    with pytest.raises(DataError, match="above 0"):
        blend(SOURCES, {"a": 0})
    with pytest.raises(ConfigError, match=r"blend\.b is 1e\+308; it must be less than or equal to"):
        build(CurateConfig, {"blend": {"a": 1.0, "b": 1e308}})


def write_corpus(folder, documents, rejects):
    write_documents(folder / "documents", documents)
    with gzip.open(folder / "rejects.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rejects)


def test_score_counts_what_is_on_disk(tmp_path):
    kept = [
        Document("honest", "plain text", "s"),
        Document("junk-left", "junk", "s"),
        Document("cut#0", "the first piece", "s", {"decontamination": {"of": "cut"}}),
        Document("cut#1", "the second piece", "s", {"decontamination": {"of": "cut"}}),
        Document("leaking", f"still here: {PASSAGE}.", "s"),
    ]
    steps = {"junk-gone": "quality", "lost": "language", "also-lost": "quality", "some/file": "read"}
    steps["cut"] = "decontamination"  # some of its pieces are left
    write_corpus(tmp_path, kept, [{"id": i, "step": step} for i, step in steps.items()])
    planted = {
        "low_quality": [{"id": "junk-gone"}, {"id": "junk-left"}],
        "leaked_item": [{"id": "cut", "item": "i"}, {"id": "leaking", "item": "i"}, {"id": "lost", "item": "i"}],
    }
    caught, honest = score(planted, {"i": PASSAGE}, tmp_path / "documents", tmp_path / "rejects.jsonl.gz")
    assert caught == {"low_quality": {"planted": 2, "caught": 1}, "leaked_item": {"planted": 3, "caught": 2}}
    assert honest == {"documents": 5, "lost": 2, "lost_by": {"language": 1, "quality": 1}}


@pytest.fixture(scope="module")
def curated(tmp_path_factory):
    root = tmp_path_factory.mktemp("views")
    (root / "raw").mkdir()
    (root / "out").mkdir()
    harvest(HarvestConfig(max_bytes=700_000, evaluation_items=30), root / "raw", seed=11)
    curate(CurateConfig(), root / "raw", root / "out", seed=11)
    return root / "out"


@pytest.fixture(scope="module")
def documents(curated):
    return list(read_documents(curated / "documents"))


@pytest.mark.broad
def test_every_document_has_a_history(curated, documents):
    for document in documents[:20]:
        found = history(curated, document.id)
        assert document.text in [one["text"] for one in found["kept"]]
        assert f"{document.id} was kept" in "\n".join(history_lines(found))
    for row in [row for row in rejects_of(curated) if row["step"] != "read"][::7]:
        found = history(curated, row["id"])
        assert row in found["dropped"]
        assert row["reason"] in "\n".join(history_lines(found))


def test_history_of_a_copy_names_its_survivor_and_the_reverse(curated):
    row = next(row for row in rejects_of(curated) if row["step"] == "near duplicates")
    assert {"id": row["id"], "jaccard": row["jaccard"]} in history(curated, row["survivor"])["copies"]
    assert {"language", "quality", "repetition"} <= row["metadata"].keys()


def test_pieces_have_the_history_of_the_document_they_are_cut_from(curated, documents):
    pieces = [d.id for d in documents if d.id.endswith(("#0", "#1"))]
    origin = pieces[0].split("#")[0]
    assert {one["id"] for one in history(curated, origin)["kept"]} >= {f"{origin}#0", f"{origin}#1"}
    assert [one["id"] for one in history(curated, pieces[0])["kept"]] == [pieces[0]]


def test_id_may_contain_the_separator_of_pieces(tmp_path):
    metadata = {"http://a": {}, "http://a#top": {}, "b#0": {"decontamination": {"of": "b"}}}
    row = {"id": "http://a#end", "source": "s", "step": "language", "reason": "language fr"}
    write_corpus(tmp_path, [Document(i, i, "s", m) for i, m in metadata.items()], [row])
    for identity, kept in (("http://a#top", ["http://a#top"]), ("http://a", ["http://a"]), ("b", ["b#0"])):
        assert [one["id"] for one in history(tmp_path, identity)["kept"]] == kept
    assert history(tmp_path, "http://a#end")["dropped"] == [row]


def test_history_of_a_long_text_is_that_of_its_pieces(tmp_path):
    def cut(number, **metadata):
        return {"cut_from": {"id": "7", "piece": number}, **metadata}

    metadata = {"7-0": cut(0), "7-1#0": cut(1, decontamination={"of": "7-1"}), "7-x": {"cut_from": "mine"}}
    row = {"id": "7-2", "source": "s", "step": "language", "reason": "language fr", "metadata": cut(2)}
    copy = {"id": "b", "source": "s", "step": "near duplicates", "reason": "near", "survivor": "7-1", "jaccard": 0.9}
    write_corpus(tmp_path, [Document(i, i, "s", m) for i, m in metadata.items()], [row, copy])
    found = history(tmp_path, "7")
    assert [one["id"] for one in found["kept"]] == ["7-0", "7-1#0"]
    assert found["dropped"] == [row]
    assert found["copies"] == [{"id": "b", "jaccard": 0.9}]
    assert history(tmp_path, "7-2")["dropped"] == [row]
    with pytest.raises(DataError, match="'7-1#1'"):
        history(tmp_path, "7-1#1")


def test_unknown_id_and_damaged_rejects_are_reported(curated, tmp_path):
    with pytest.raises(DataError, match="'nobody'"):
        history(curated, "nobody")
    with pytest.raises(DataError, match="corpus curate"):
        list(rejects_of(tmp_path))
    (tmp_path / "rejects.jsonl.gz").write_bytes((curated / "rejects.jsonl.gz").read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged"):
        list(rejects_of(tmp_path))


def test_statistics_agree_with_the_funnel(curated, documents):
    found = corpus_statistics(curated)
    funnel = {entry["step"]: entry for entry in json.loads((curated / "funnel.json").read_text())}
    for step, reasons in found["rejected"].items():
        assert reasons == funnel[step]["dropped"]
    near = sum(funnel["near duplicates"]["dropped"].values())
    assert sum(found["similarities"]) == near == sum(found["similarities"][8:])
    lengths = [len(d.text) for d in documents]
    extremes = [(v[0], v[-1]) for name, v in found["figures"].items() if name.startswith("characters of")]
    assert (min(low for low, _ in extremes), max(high for _, high in extremes)) == (min(lengths), max(lengths))
    assert len(statistics_lines(found)) > len(found["figures"])
    figures = {"figures": {"characters": [0.01234, 999.5, 11922.4, 993240.0]}, "quantiles": [0, 0.25, 0.5, 1]}
    long = statistics_lines({**figures, "rejected": {}, "similarities": []})[1]
    assert long.split() == ["characters", "0.01234", "999.5", "11,922", "993,240"]


def test_numbers_that_are_not_finite_floats_are_left_out_of_statistics():
    metadata = {"n": 10**400, "inf": float("inf"), "nan": float("nan"), "in": {"words": 7, "n": -(10**400)}}
    assert list(numbers_in(metadata)) == [("in.words", 7.0)]


def test_every_difference_between_two_corpora_is_listed(curated, documents, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(curated, other)
    assert differences_between(curated, other) == []
    (other / "funnel.json").write_text("[]")
    assert differences_between(curated, other) == ["funnel.json differs"]
    changed = [Document(documents[0].id, documents[0].text + "x", documents[0].source), *documents[2:]]
    write_documents(other / "documents", changed)
    (other / "blend.json").unlink()
    lines = differences_between(curated, other)
    assert f"blend.json is only in {curated}" in lines
    assert any("1 document with different text" in line for line in lines)
    assert any(f"only in {curated / 'documents'}, such as {documents[1].id}" in line for line in lines)
    with pytest.raises(DataError, match="not a folder"):
        differences_between(curated, tmp_path / "nothing")
