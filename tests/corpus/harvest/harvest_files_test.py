"""Laws of harvesting in parts: no byte depends on kills or the number of processes, and no document is there twice."""

import hashlib
import json

import pytest

from corpus.harvest.harvest_test import write_user_files
from corpus.kills import ends
from corpus.resume_test import digests
from trivium.corpus import work as unfinished
from trivium.corpus.config import HarvestConfig
from trivium.corpus.daft_engine import Daft
from trivium.corpus.document import Document
from trivium.corpus.harvest import harvest_files
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.harvest.heldout import choose
from trivium.corpus.publish.store import read_documents
from trivium.corpus.read.files import input_files
from trivium.corpus.read.read import read_any
from trivium.errors import DataError

CONFIG = HarvestConfig(shard_bytes=20_000, evaluation_items=20)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(unfinished, "PART_BYTES", 20_000)
    monkeypatch.setattr(harvest_files, "PART_BYTES", 20_000)


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files") / "mine"
    write_user_files(folder)
    rows = [{"id": n % 7, "text": f"Row {n} has a text of its own. " * (n % 9)} for n in range(90)]
    for name in ("a", "b"):  # names of files and rows repeat
        (folder / name).mkdir()
        (folder / name / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "a" / "empty.txt").touch()
    return folder


def harvested(mine, out, work=None, **how):
    out.mkdir(exist_ok=True)
    harvest(CONFIG, out, seed=4, corpus=mine, work=work or out.with_suffix(".work"), **how)
    return digests(out)


def test_every_document_is_once_in_the_raw_files_or_held_out_under_an_id_of_its_own(tmp_path, mine):
    harvested(mine, tmp_path / "out")
    kept = [
        document
        for folder in ("warc", "jsonl")
        for path in input_files(tmp_path / "out" / folder)
        for document in read_any(path, source="?")
    ]
    raw = [d for path in input_files(mine) for d in read_any(path, source="?", longest=CONFIG.longest)]
    raw = [d for d in raw if isinstance(d, Document)]
    heldout = list(read_documents(tmp_path / "out" / "heldout"))
    assert len(list((tmp_path / "out" / "jsonl").iterdir())) > 2
    assert len(kept) + len(heldout) == len(raw) == len({d.id for d in (*kept, *heldout)})
    assert {d.text for d in kept} <= {d.text for d in raw}
    items = [json.loads(line) for line in (tmp_path / "out" / "evaluation_items.jsonl").read_text().splitlines()]
    texts = {d.id: " ".join(d.text.split()) for d in heldout}
    assert items and all(" ".join(item["text"].split()) in texts[item["document"]] for item in items)
    entries = json.loads((tmp_path / "out" / "sources.json").read_text())
    assert [e["sha256"] for e in entries] == [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in input_files(mine)
    ]


@pytest.mark.broad
def test_two_processes_give_the_bytes_of_one(tmp_path, mine, monkeypatch):
    monkeypatch.setattr(unfinished, "PART_BYTES", 16 << 20)  # the default, which other processes use
    one = harvested(mine, tmp_path / "one")
    assert harvested(mine, tmp_path / "two", engine=Daft("native", workers=2)) == one


@pytest.mark.parametrize("before", [False, True])
def test_killed_at_every_single_piece_it_ends_with_the_same_bytes(tmp_path, mine, monkeypatch, before):
    whole, out = harvested(mine, tmp_path / "whole"), tmp_path / "out"
    work, kills, found = out.with_suffix(".work"), 0, []
    while not ends(lambda: found.append(harvested(mine, out)), monkeypatch, work, survive=1 + before, before=before):
        kills += 1
    assert found == [whole] and 10 < kills < 200
    monkeypatch.setattr(harvest_files, "read_any", None)  # the kept work gives the output again without reading a file
    assert harvested(mine, tmp_path / "again", work=work) == whole


@pytest.mark.parametrize("grown", [False, True])
def test_a_file_that_changes_between_the_readings_is_an_error_that_names_it(tmp_path, mine, monkeypatch, grown):
    place = tmp_path / "x.jsonl"
    rows = (mine / "a" / "rows.jsonl").read_text()
    place.write_text(rows)
    real = harvest_files._decide

    def decide(*words):
        real(*words)
        place.write_text(rows * 9 if grown else rows.replace("Row 5 ", "Row five ").replace('"id": 3', '"id": 33'))

    monkeypatch.setattr(harvest_files, "_decide", decide)
    with pytest.raises(DataError, match=r"x\.jsonl: it changed while it was read"):
        harvested(place, tmp_path / "out")


def test_the_search_for_passages_is_bounded():
    """If no document has a passage, it would otherwise read every text that may be held out: terabytes."""
    asked = []

    def document_of(number):
        asked.append(number)
        return Document(str(number), "no prose", "s")

    config = HarvestConfig(evaluation_items=2)
    chosen, items = choose(range(30_000), document_of, 100_000, config)
    assert (len(chosen), items, len(asked)) == (3_000, [], 200)
