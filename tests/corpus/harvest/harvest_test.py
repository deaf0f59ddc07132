"""Laws of the harvest: everything is accounted for, and the same seed gives the same bytes."""

import gzip
import hashlib
import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.config import shipped
from trivium.corpus.clean.extract import extract_step
from trivium.corpus.config import STORIES, CurateConfig, HarvestConfig
from trivium.corpus.dedup.minhash import jaccard, shingles
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.harvest.plant import html_page
from trivium.corpus.harvest.stories import cut, read_stories, story_documents
from trivium.corpus.pipeline import curate
from trivium.corpus.publish.store import read_documents
from trivium.corpus.read.files import input_files
from trivium.corpus.read.ids import OwnIds, keys_of
from trivium.corpus.read.read import read_any
from trivium.corpus.read.warc import Page, write_warc
from trivium.corpus.select.evaluation_texts import evaluation_items
from trivium.errors import DataError
from trivium.seeds import generator_for

SMALL = HarvestConfig(max_bytes=900_000, evaluation_items=40)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    out = tmp_path_factory.mktemp("harvest")
    return out, harvest(SMALL, out, seed=1234)


@cache
def honest(seed):
    """The documents of the default corpus."""
    return story_documents(SMALL, seed=seed)[0]


def raw_texts(out):
    extract = extract_step()
    found = {}
    for folder in ("warc", "jsonl"):
        if any((out / folder).iterdir()):
            for path in input_files(out / folder):
                for document in read_any(path, source="?"):
                    found[document.id] = extract.judge(document).document
    return found


def bytes_of(out):
    files = sorted(p for p in out.rglob("*") if p.is_file())
    return {p.relative_to(out).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.broad
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(small, tmp_path):
    for name, seed in (("same", 1234), ("other", 4321)):
        (tmp_path / name).mkdir()
        harvest(SMALL, tmp_path / name, seed=seed)
    assert bytes_of(tmp_path / "same") == bytes_of(small[0])
    assert bytes_of(tmp_path / "other") != bytes_of(small[0])


def test_documents_are_the_shipped_stories_cut_at_paragraphs():
    documents, entries = story_documents(HarvestConfig(), seed=1)
    assert all(HarvestConfig().shortest <= len(d.text) <= HarvestConfig().longest for d in documents)
    assert sum(e["documents"] for e in entries) == len(documents) == len({d.id for d in documents})
    assert sum(e["text_bytes"] for e in entries) == sum(d.text_bytes for d in documents) > 2_400_000
    whole = "".join(chapter["text"] for chapter in read_stories())
    assert all(document.text in whole for document in documents)


def test_every_book_has_a_source_a_hash_and_a_license():
    _, entries = story_documents(SMALL, seed=1)
    sources = {chapter["source"] for chapter in read_stories()}
    assert {e["source"] for e in entries} == sources
    assert all(len(e["sha256"]) == 64 and e["license"] == "public domain" for e in entries)
    assert SMALL.max_bytes * 0.7 < sum(e["text_bytes"] for e in entries) < SMALL.max_bytes * 1.4


@given(st.lists(st.text("ab ", min_size=1, max_size=40).map(str.strip).filter(bool), min_size=1), st.integers(1, 60))
def test_pieces_join_to_the_text_but_for_a_short_end(paragraphs, longest):
    text = "\n\n".join(paragraphs)
    pieces = list(cut(text, shortest=0, longest=longest))
    assert "\n\n".join(pieces) == text
    assert all(len(piece) <= longest + 40 for piece in pieces)
    assert list(cut(text, shortest=10, longest=longest))[: len(pieces) - 1] == pieces[:-1]


def test_the_stories_that_the_package_ships_are_small_and_their_source_is_told():
    packed = shipped(STORIES)
    assert packed.stat().st_size < 3_000_000
    told = packed.with_name("stories.md").read_text(encoding="utf-8")
    assert "**License.** Public domain" in told
    assert all(chapter["book"].replace("&", "and") in told for chapter in read_stories())


def test_pages_and_lines_together_hold_every_honest_and_planted_document_once(small):
    out, summary = small
    texts = raw_texts(out)
    assert len(texts) == summary["documents"]
    assert any((out / "warc").iterdir())
    assert any((out / "jsonl").iterdir())
    heldout = {document.id for document in read_documents(out / "heldout")}
    assert heldout
    assert not heldout & texts.keys()
    planted = json.loads((out / "planted.json").read_text())
    assert set(planted) == {"near_duplicate", "boilerplate", "other_language", "low_quality", "leaked_item"}
    assert all(len(entries) >= 8 and entry["id"] in texts for entries in planted.values() for entry in entries)


def test_the_summary_states_the_bytes_of_the_documents_it_counts(small, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "out").mkdir()
    for number in range(40):
        (tmp_path / "mine" / f"{number}.txt").write_text("A sentence of its own, and another one. " * number)
    of_files = tmp_path / "out", harvest(HarvestConfig(), tmp_path / "out", seed=4, corpus=tmp_path / "mine")
    for out, told in (small, of_files):
        texts = raw_texts(out).values()
        assert told["heldout"] and told["documents"] == len(texts)
        read = sum(document.text_bytes for document in texts)
        # of planted boilerplate, extraction leaves a little out
        assert read <= told["text_bytes"] <= read + 3000 * ("planted" in told)


def test_planted_copies_have_the_recorded_similarity(small):
    texts = raw_texts(small[0])
    entries = json.loads((small[0] / "planted.json").read_text())["near_duplicate"]
    for entry in entries:
        measured = jaccard(*(shingles(texts[entry[k]].text, size=5) for k in ("id", "original")))
        assert 0.8 <= entry["jaccard"] <= 0.95
        assert measured == pytest.approx(entry["jaccard"], abs=0.06)


def test_evaluation_passages_stand_in_heldout_documents_and_leaks_in_their_hosts(small):
    out, _ = small
    items = {row["id"]: row for row in map(json.loads, (out / "evaluation_items.jsonl").read_text().splitlines())}
    heldout = {document.id: document.text for document in read_documents(out / "heldout")}
    assert len(items) == 40
    assert all(row["text"] in heldout[row["document"]] for row in items.values())
    texts = raw_texts(out)
    leaks = json.loads((out / "planted.json").read_text())["leaked_item"]
    assert all(items[leak["item"]]["text"] in texts[leak["id"]].text for leak in leaks)


def test_planted_documents_differ_from_honest_ones_only_in_their_text(small):
    out, _ = small
    planted = {e["id"] for entries in json.loads((out / "planted.json").read_text()).values() for e in entries}
    kinds = {True: set(), False: set()}
    for identity, document in raw_texts(out).items():
        kinds[identity in planted].add((len(identity), document.source, tuple(sorted(document.metadata))))
    assert kinds[True] <= kinds[False]


def write_user_files(root):
    (root / "books").mkdir(parents=True)
    texts = [document.text for document in honest(1)][:120]
    for n in range(3):
        (root / "books" / f"{n}.txt").write_text("\n\n".join(texts[n * 20 : n * 20 + 20]))
    (root / "notes.md").write_text(texts[60])
    rows = [{"id": f"r{n}", "text": text} for n, text in enumerate(texts[61:90])]
    (root / "rows.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    pages = [
        html_page(text.split("\n\n"), title="A page", generator=generator_for(n, "page"))
        for n, text in enumerate(texts[90:120])
    ]
    write_warc(
        root / "crawl.warc.gz",
        [Page(f"https://a.org/{n}", "text/html", "utf-8", page.encode()) for n, page in enumerate(pages)],
    )


def test_a_users_files_of_every_kind_are_taken_and_curated(tmp_path):
    write_user_files(tmp_path / "mine")
    (tmp_path / "raw").mkdir()
    summary = harvest(HarvestConfig(), tmp_path / "raw", seed=2, corpus=tmp_path / "mine")
    texts = raw_texts(tmp_path / "raw")
    assert {d.source for d in texts.values()} == {"books", "mine", "rows", "crawl"}
    assert summary["documents"] + summary["heldout"] == sum(
        e["documents"] for e in json.loads((tmp_path / "raw" / "sources.json").read_text())
    )
    assert not (tmp_path / "raw" / "planted.json").exists()
    assert summary["heldout"] >= 1
    pages = [d for d in texts.values() if d.source == "crawl"]
    assert all(d.metadata["url"].startswith("https://a.org/") for d in pages)
    (tmp_path / "curated").mkdir()
    result = curate(CurateConfig(), tmp_path / "raw", tmp_path / "curated", seed=1)
    assert "planted" not in result
    assert result["funnel"][0]["documents"] == summary["documents"]


def test_a_harvested_page_keeps_the_date_it_was_fetched_on(tmp_path):
    (tmp_path / "crawl").mkdir()
    dates = [f"20{year}-05-05T01:02:03Z" for year in range(13, 23)]
    page = b"<p>" + b"A sentence of some length stands here. " * 20
    pages = [Page(f"http://a/{date}", "text/html", None, page, date) for date in dates]
    write_warc(tmp_path / "crawl" / "a.warc.gz", pages)
    (tmp_path / "out").mkdir()
    harvest(HarvestConfig(), tmp_path / "out", seed=0, corpus=tmp_path / "crawl")
    found = [d for path in input_files(tmp_path / "out" / "warc") for d in read_any(path, source="?")]
    assert len(found) == 9
    assert all(d.metadata["url"] == f"http://a/{d.metadata['date']}" for d in found)


def test_a_source_is_called_alike_in_pages_and_in_the_list_of_sources_whatever_its_folder_is_called(tmp_path):
    names = ["two  blanks", "a\nline", " before", "100%41", "plain"]
    for name in names:
        (tmp_path / "mine" / name).mkdir(parents=True)
        page = b"<p>" + b"A sentence of some length stands here. " * 20
        pages = [Page(f"http://a/{name.split()[0]}/{n}", "text/html", None, page) for n in range(2)]
        write_warc(tmp_path / "mine" / name / "a.warc.gz", pages)
    (tmp_path / "out").mkdir()
    harvest(HarvestConfig(), tmp_path / "out", seed=0, corpus=tmp_path / "mine")
    listed = {entry["source"] for entry in json.loads((tmp_path / "out" / "sources.json").read_text())}
    found = [d for path in input_files(tmp_path / "out" / "warc") for d in read_any(path, source="?")]
    assert listed == {d.source for d in found} == set(names)


def test_files_that_number_their_rows_alike_lose_no_document(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / "mine" / folder).mkdir(parents=True)
        rows = [{"id": n, "text": f"Text {n} of {folder}. {'More of it. ' * n}"} for n in range(60)]
        # and one row twice, with a name that a repeated id might be given
        rows += [{"id": "0~2", "text": "A text."}] * 2
        (tmp_path / "mine" / folder / "x.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "raw").mkdir()
    summary = harvest(HarvestConfig(), tmp_path / "raw", seed=1, corpus=tmp_path / "mine")
    heldout = [d.id for d in read_documents(tmp_path / "raw" / "heldout")]
    kept = [d.id for path in input_files(tmp_path / "raw" / "jsonl") for d in read_any(path, source="?")]
    assert len({*heldout, *kept}) == len(heldout) + len(kept) == 124
    assert (summary["heldout"], summary["documents"]) == (len(heldout), len(kept))
    assert {"0", "0~2", "59", "59~2"} <= {*heldout, *kept}


def test_an_id_may_hold_whatever_ends_a_line_elsewhere(tmp_path):
    texts = [document.text for document in honest(1)][:60]
    rows = [{"id": f"a\u2028b\u2029c\x85d{n}", "text": text} for n, text in enumerate(texts)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "raw").mkdir()
    summary = harvest(HarvestConfig(), tmp_path / "raw", seed=1, corpus=tmp_path / "x.jsonl")
    assert len(evaluation_items(tmp_path / "raw")) == summary["evaluation_items"] > 0
    assert all("\u2028" in identity for identity in evaluation_items(tmp_path / "raw"))


@given(st.lists(st.sampled_from(["a", "a~2", "a~3", "a~2~2", "b"]), max_size=12))
def test_ids_of_a_corpus_are_different_and_the_same_whenever_it_is_read(names):
    ids, again = OwnIds(keys_of(names)), OwnIds(keys_of(names))
    own = [ids.of(name) for name in names]
    assert own == [again.of(name) for name in names]
    assert len(set(own)) == len(names)
    assert {name for name, key in zip(names, keys_of(names), strict=True) if not ids.may_repeat(key)} <= set(own)
    assert all(one.startswith(name) for one, name in zip(own, names, strict=True))


def test_one_bad_file_among_many_is_quarantined_with_its_reason(tmp_path):
    write_user_files(tmp_path / "mine")
    path = tmp_path / "mine" / "crawl.warc.gz"
    path.write_bytes(path.read_bytes()[:-30])
    (tmp_path / "mine" / "empty.txt").touch()
    (tmp_path / "raw").mkdir()
    summary = harvest(HarvestConfig(), tmp_path / "raw", seed=1, corpus=tmp_path / "mine")
    entries = {e["path"]: e for e in json.loads((tmp_path / "raw" / "sources.json").read_text())}
    assert summary["quarantined"] == 2
    assert entries["empty.txt"]["quarantined"] == 1
    assert entries["crawl.warc.gz"]["quarantined"] == 1
    assert entries["crawl.warc.gz"]["documents"] == 29
    assert "ends early" in entries["crawl.warc.gz"]["reason"]
    assert "quarantined" in entries["notes.md"]
    assert "reason" not in entries["notes.md"]


@pytest.mark.parametrize("name", ["empty.txt", "cut.warc.gz", "cut.jsonl.gz"])
def test_a_corpus_without_a_readable_document_is_an_error_that_names_the_file(tmp_path, name):
    (tmp_path / name).write_bytes(b"" if name == "empty.txt" else gzip.compress(b"WARC/1.0\r\n" * 9)[:15])
    (tmp_path / "raw").mkdir()
    with pytest.raises(DataError, match=name):
        harvest(HarvestConfig(), tmp_path / "raw", seed=1, corpus=tmp_path / name)
    with pytest.raises(DataError, match="absent"):
        harvest(HarvestConfig(), tmp_path / "raw", seed=1, corpus=tmp_path / "absent")
