"""Single steps as verbs: they balance, continue after a kill, and together do what a curation does."""

import gzip
import json
import subprocess

import pytest

from corpus.funnels import balances
from trivium.corpus import work
from trivium.corpus.config import CurateConfig, HarvestConfig, ReadConfig
from trivium.corpus.daft_engine import Daft
from trivium.corpus.document import Document
from trivium.corpus.files import Input
from trivium.corpus.filters import named_steps
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.publish.views import rejects_of
from trivium.corpus.read.inputs import as_read_at, documents_at
from trivium.corpus.run_steps import run_steps
from trivium.corpus.steps import Steps
from trivium.corpus.store import read_documents, write_documents
from trivium.errors import ConfigError, DataError

GOOD = "The parser reads each of the words that stand in the line, and then it returns with the value to be used. "


@pytest.fixture
def raw(tmp_path):
    """Two JSON line files with good texts, short texts, and a line that is damaged."""
    for name in ("one", "two"):
        lines = [json.dumps({"id": f"{name}{n}", "text": f"{GOOD * (n % 10)} and number {n}."}) for n in range(40)]
        lines.insert(7, "{damaged")
        folder = tmp_path / "raw" / name
        folder.mkdir(parents=True)
        (folder / "part.jsonl").write_text("\n".join(lines))
    return tmp_path / "raw"


def run(tmp_path, source, *names, name="out", limits=ReadConfig(), **more):
    out = tmp_path / name
    out.mkdir()
    config = CurateConfig(filters=names)
    found = run_steps(config, Input(source, limits), out, seed=1, work=tmp_path / f"{name}.work", **more)
    return out, found["funnel"]


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_reading_alone_quarantines_and_keeps_everything_else(tmp_path, raw):
    out, funnel = run(tmp_path, raw)
    assert [tally["step"] for tally in funnel] == ["read"]
    assert (funnel[0]["documents"], funnel[0]["quarantined"]) == (80, 2)
    documents = list(read_documents(out / "documents"))
    assert len(documents) == 80 and {d.source for d in documents} == {"one", "two"}
    assert [row["step"] for row in rejects_of(out)] == ["read", "read"]


def test_a_step_alone_does_what_it_does_among_others(tmp_path, raw):
    read, _ = run(tmp_path, raw, name="read")
    clean, _ = run(tmp_path, read, "clean", name="clean")
    quality, funnel = run(tmp_path, clean, "quality", name="quality")
    assert balances(funnel)
    steps = Steps(named_steps(CurateConfig(filters=("clean", "quality")), seed=1))
    expected = [d for d in steps.run(documents_at(Input(read))) if isinstance(d, Document)]
    assert list(read_documents(quality / "documents")) == expected
    assert {r["id"] for r in rejects_of(quality)} | {d.id for d in expected} == {
        d.id for d in documents_at(Input(read))
    }
    assert 0 < len(expected) < 80


def test_killed_after_every_part_it_goes_on_to_the_same_bytes(tmp_path, raw, monkeypatch):
    monkeypatch.setattr(work, "PART_BYTES", 2000)
    whole, _ = run(tmp_path, raw, "quality", name="whole")
    real, kills = work.lay_down, 0

    class Killed(BaseException):
        pass

    def lay_down(*words, **more):
        real(*words, **more)
        raise Killed

    out = tmp_path / "killed"
    out.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(work, "lay_down", lay_down)
        while kills < 100:
            try:
                run_steps(CurateConfig(filters=("quality",)), Input(raw), out, seed=1, work=tmp_path / "work")
                break
            except Killed:
                kills += 1
    assert 5 < kills < 100
    assert content(out) == content(whole)
    monkeypatch.setattr("trivium.corpus.read.inputs.read_any", None)  # its output may be lost before it has its name
    (tmp_path / "again").mkdir()
    run_steps(CurateConfig(filters=("quality",)), Input(raw), tmp_path / "again", seed=1, work=tmp_path / "work")
    assert content(tmp_path / "again") == content(whole)


def test_a_store_is_read_with_its_metadata_and_a_folder_without_texts_is_an_error(tmp_path):
    documents = [Document("a", GOOD * 9, "s", {"url": "http://x/"}), Document("b", "x", "t")]
    write_documents(tmp_path / "store", documents)
    assert list(documents_at(Input(tmp_path / "store"))) == documents
    out, _ = run(tmp_path, tmp_path / "store")
    assert list(read_documents(out / "documents")) == documents
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="holds no file"):
        list(documents_at(Input(tmp_path / "nothing")))


def test_verbs_that_need_whole_input_refuse_a_damaged_part_and_say_what_to_do(raw):
    with pytest.raises(DataError, match="corpus step read"):
        list(documents_at(Input(raw)))


def test_a_step_that_is_none_is_refused_before_anything_is_read(tmp_path, raw):
    with pytest.raises(ConfigError, match="qualty"):
        run(tmp_path, raw, "qualty")
    assert not (tmp_path / "out.work").exists()


def test_rejects_are_gzip_that_any_reader_reads(tmp_path, raw):
    out, funnel = run(tmp_path, raw, "quality")
    with gzip.open(out / "rejects.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == sum(funnel[1]["dropped"].values()) + funnel[0]["quarantined"]


def test_rejects_of_which_there_are_none_are_gzip_too(tmp_path):
    write_documents(tmp_path / "store", [Document("a", GOOD, "s")])
    for name in ("one", "two"):
        out, _ = run(tmp_path, tmp_path / "store", name=name)
        packed = (out / "rejects.jsonl.gz").read_bytes()
        assert subprocess.run(["gzip", "-dc"], input=packed, capture_output=True, check=True).stdout == b""
        assert not list(rejects_of(out))
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_rows_that_files_number_alike_get_the_ids_that_a_harvest_gives_them(tmp_path, monkeypatch):
    """Read by a step, in parts, or as a whole; where nothing is held out, a harvest has the same documents."""
    (tmp_path / "raw").mkdir()
    for name in ("a", "b"):
        rows = [{"id": n, "text": f"{GOOD * 3}{name}{n}"} for n in range(10)] + [{"id": "7~2", "text": name}]
        lines = [json.dumps(row) for row in rows]
        (tmp_path / "raw" / f"{name}.jsonl").write_text("\n".join([*lines[:3], "{damaged", *lines[3:]]))
    monkeypatch.setattr(work, "PART_BYTES", 1000)
    out, _ = run(tmp_path, tmp_path / "raw", "clean")
    kept = list(read_documents(out / "documents"))
    assert len({d.id for d in kept}) == len(kept) == 22
    assert {d.id: d.text[-2:] for d in kept}["7~3"] == "b7"  # 7~2 is there
    (tmp_path / "harvest").mkdir()
    harvest(HarvestConfig(heldout_fraction=0.0), tmp_path / "harvest", seed=1, corpus=tmp_path / "raw")
    raw = {d.id: d.text for folder in ("jsonl", "heldout") for d in as_read_at(Input(tmp_path / "harvest" / folder))}
    assert raw.items() == {d.id: d.text for d in kept}.items()
    for file in (tmp_path / "raw").iterdir():
        file.write_text(file.read_text().replace("{damaged", ""))
    assert [(d.id, d.text) for d in documents_at(Input(tmp_path / "raw"))] == [(d.id, d.text) for d in kept]


@pytest.mark.parametrize("named", ["src1", "latest", "src1/one.txt", "src1/shard-00001.jsonl"])
def test_a_source_is_called_by_what_was_named_as_in_a_harvest(tmp_path, named):
    """A file of its own, a folder behind a link: and so ids, which hold the source, are the same."""
    (tmp_path / "src1").mkdir()
    (tmp_path / "src1" / "one.txt").write_text(GOOD * 9)
    (tmp_path / "src1" / "shard-00001.jsonl").write_text(json.dumps({"text": GOOD}) + "\n{damaged")
    (tmp_path / "latest").symlink_to(tmp_path / "src1")
    out, _ = run(tmp_path, tmp_path / named)
    (tmp_path / "harvest").mkdir()
    harvest(HarvestConfig(heldout_fraction=0.0), tmp_path / "harvest", seed=1, corpus=tmp_path / named)
    raw = {
        (d.id, d.source) for folder in ("jsonl", "heldout") for d in as_read_at(Input(tmp_path / "harvest" / folder))
    }
    assert {(d.id, d.source) for d in read_documents(out / "documents")} == raw
    assert {row["id"] for row in rejects_of(out)} <= {"shard-00001.jsonl"}


@pytest.mark.parametrize("manifest", ['{"files": ["a.jsonl"]}', '["a.jsonl"]', '{"format": "other-1"}'])
@pytest.mark.parametrize("folder", ["", "below"])
def test_a_manifest_of_others_is_not_read_as_ours(tmp_path, manifest, folder):
    raw = tmp_path / "raw"
    (raw / folder).mkdir(parents=True)
    (raw / folder / "a.jsonl").write_text(json.dumps({"id": "a", "text": GOOD}))
    (raw / folder / "manifest.json").write_text(manifest)
    out, _ = run(tmp_path, raw)
    assert list(read_documents(out / "documents")) == list(documents_at(Input(raw)))
    for ours in ("{", '{"format": "trivium-tokens-1"}'):
        (raw / "manifest.json").write_text(ours)
        with pytest.raises(DataError, match="manifest.json is not "):
            list(documents_at(Input(raw)))


@pytest.mark.broad
def test_two_processes_give_the_bytes_of_one(tmp_path, raw):
    one, _ = run(tmp_path, raw, "quality", name="one")
    two, _ = run(tmp_path, raw, "quality", name="two", engine=Daft("native", workers=2))
    assert content(one) == content(two)
