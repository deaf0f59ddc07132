"""Curation: planted junk is dropped, clean documents stay, and every document is accounted for."""

import gzip
import json
import shutil
import subprocess
import unicodedata
from html import escape

import pytest

from corpus.funnels import balances
from corpus.kills import digests
from trivium.corpus import work
from trivium.corpus.clean.filters import named_steps
from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.corpus.daft_engine import Daft
from trivium.corpus.dedup.comparison import REASONS, Fate
from trivium.corpus.dedup.minhash import jaccard, shingles
from trivium.corpus.document import Document
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.pipeline import curate, run_steps
from trivium.corpus.publish.store import read_documents, write_documents
from trivium.corpus.publish.views import funnel_lines, history, history_lines, rejects_of
from trivium.corpus.read.files import Input
from trivium.corpus.read.inputs import as_read_at, documents_at
from trivium.corpus.read.warc import Page, write_warc
from trivium.corpus.select.decontaminate import keys_of
from trivium.corpus.steps import Drop, Keep, Reject, Step, Steps, Tally, figure_of, noted
from trivium.errors import ConfigError, DataError
from trivium.seeds import generator_for

SMALL = HarvestConfig(max_bytes=900_000, longest=3000, evaluation_items=40)
GOOD = "The parser reads each of the words that stand in the line, and then it returns with the value to be used. "


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("curate")
    (root / "raw").mkdir()
    (root / "out").mkdir()
    harvest(SMALL, root / "raw", seed=1234)
    return root, curate(CurateConfig(), root / "raw", root / "out", seed=1234)


@pytest.fixture(scope="module")
def kept(folders):
    return list(read_documents(folders[0] / "out" / "documents"))


@pytest.fixture
def raw(folders, tmp_path):
    """A copy of the harvest, which a test may change."""
    shutil.copytree(folders[0] / "raw", tmp_path / "raw")
    (tmp_path / "out").mkdir()
    return tmp_path / "raw"


def write_rows(raw, rows):
    """Replace the raw files of a harvest by one row in each file."""
    for name in ("jsonl", "warc"):
        shutil.rmtree(raw / name, ignore_errors=True)
    (raw / "jsonl").mkdir(parents=True)
    for number, row in enumerate(rows):
        (raw / "jsonl" / f"part-{number:05d}.jsonl").write_text(json.dumps(row) + "\n")


def curated(raw, seed=1234, **config):
    """Curate a copy. Return the result, the documents, and the rejects by id."""
    out = raw.parent / "out"
    result = curate(CurateConfig(**config), raw, out, seed=seed)
    return result, list(read_documents(out / "documents")), {row["id"]: row for row in rejects_of(out)}


def test_planted_junk_is_caught_and_clean_documents_stay(folders):
    _, result = folders
    assert set(result["planted"]) == {"near_duplicate", "boilerplate", "other_language", "low_quality", "leaked_item"}
    for kind, counts in result["planted"].items():
        assert counts["planted"] >= 8
        assert counts["caught"] >= 0.95 * counts["planted"], kind
    assert result["honest"]["documents"] > 200
    assert result["honest"]["lost"] <= 0.02 * result["honest"]["documents"]


def test_funnel_balances_and_agrees_with_the_files(folders, kept):
    root, result = folders
    funnel, rejects = result["funnel"], list(rejects_of(root / "out"))
    assert funnel == json.loads((root / "out" / "funnel.json").read_text())
    assert funnel[0]["step"] == "read"
    assert balances(funnel)
    assert funnel[-1]["documents"] == len(kept) == len({d.id for d in kept})
    assert funnel[-1]["bytes"] == sum(d.text_bytes for d in kept)
    assert {(r["step"], r["reason"]) for r in rejects} == {
        (e["step"], reason) for e in funnel for reason in e["dropped"]
    }
    assert len(rejects) == sum(sum(e["dropped"].values()) for e in funnel)
    assert not (root / "out" / ".work").exists()
    assert all({"url", "language", "quality", "repetition"} <= d.metadata.keys() for d in kept)
    assert any("decontamination" in d.metadata for d in kept)


def test_funnel_has_a_line_for_each_step_and_each_kind_of_junk(folders):
    _, result = folders
    lines = funnel_lines(result)
    assert len(lines) == 1 + len(result["funnel"]) + len(result["planted"]) + 1
    assert all(any(e["step"] in line for line in lines) for e in result["funnel"])
    assert "honest documents lost" in lines[-1]


def test_same_seed_gives_the_same_bytes_without_the_list_of_planted_junk(folders, raw):
    (raw / "planted.json").unlink()
    result, *_ = curated(raw)
    assert "planted" not in result
    expected = {
        name: one for name, one in digests(folders[0] / "out").items() if name.stem not in ("planted", "honest")
    }
    assert digests(raw.parent / "out") == expected


def test_every_planted_leak_is_cut_out(folders, kept):
    root, result = folders
    items = map(json.loads, (root / "raw" / "evaluation_items.jsonl").read_text().splitlines())
    texts = {row["id"]: row["text"] for row in items}
    config = CurateConfig().decontamination
    spared = result["decontamination"]["common_keys_spared"].keys()
    keys = {key for text in texts.values() for key in keys_of(text, config)} - spared
    assert len(keys) > 500
    assert all(keys.isdisjoint(keys_of(document.text, config)) for document in kept)
    leaks = {leak["item"] for leak in json.loads((root / "raw" / "planted.json").read_text())["leaked_item"]}
    assert leaks <= set(result["decontamination"]["items_seen"])


@pytest.mark.parametrize("form", ["as is", "decomposed", "ligatures", "page"])
def test_texts_of_a_configured_benchmark_are_cut_out_in_any_encoding(raw, form):
    leaked = (
        "The naïve café owner in Zürich offered the final résumé of his office to a fiancée who, flawless records "
        "say, refused the élite façade and left Málaga for a flat of her own in Köln."
    )
    others = [f"Sentence {n} of this page tells of thing{n} and of matter{7 * n}." for n in range(60)]
    write_rows(raw, [{"id": "leaky", "text": " ".join([*others[:30], leaked, *others[30:]]), "source": "s"}])
    written = {
        "decomposed": unicodedata.normalize("NFD", leaked),
        "ligatures": leaked.replace("fi", "ﬁ").replace("fl", "ﬂ"),
    }.get(form, leaked)
    bench = raw.parent / "bench.jsonl"
    bench.write_text(json.dumps({"text": written}) + "\n" + json.dumps({"text": "Nothing of this stands there."}))
    if form == "page":
        body = escape(leaked).encode("ascii", "xmlcharrefreplace")
        bench = raw.parent / "bench.warc.gz"
        write_warc(bench, [Page("https://a.example/", "text/html", None, b"<article><p>%s</p></article>" % body)])
    result, documents, _ = curated(raw, decontamination={"against": (str(bench),)}, filters=())
    seen = result["decontamination"]["items_seen"]
    assert f"{bench}:0" in seen and f"{bench}:1" not in seen
    assert not any("fiancée who" in d.text for d in documents) and any("thing7 " in d.text for d in documents)


def test_no_two_documents_are_similar_and_each_near_duplicate_is(folders, kept):
    sets = [shingles(d.text, size=5) for d in kept]
    gone = [r for r in rejects_of(folders[0] / "out") if r["step"] == "near duplicates"]
    assert gone and all(r["jaccard"] >= 0.8 for r in gone)
    assert not [n for n in range(len(sets)) for m in range(n) if jaccard(sets[n], sets[m]) >= 0.8]


def test_exactly_the_pairs_above_the_threshold_lose_one(kept, raw):
    draw = generator_for(5, "pairs")
    texts = [d.text for d in kept if 300 < len(d.text.split()) < 600]
    rows, similar = [], {}
    for number, text in enumerate(texts[:60]):
        words = text.split()
        changed = list(words)
        for place in draw.choice(len(words), size=int(len(words) * (0.01 + 0.001 * number)), replace=False):
            changed[place] = words[draw.integers(len(words))]
        pair = [" ".join(words), " ".join(changed)]
        similar[number] = jaccard(*(shingles(each, size=5) for each in pair))
        rows += [{"id": f"{x}{number}", "text": each, "source": "wiki"} for x, each in zip("ab", pair, strict=True)]
    write_rows(raw, rows)
    by_step = {name: row["step"] for name, row in curated(raw)[2].items()}
    lost = {name for name, step in by_step.items() if step == "near duplicates"}
    judged = [n for n in similar if {by_step.get(f"{x}{n}") for x in "ab"} <= {None, "near duplicates"}]
    assert lost >= {f"b{n}" for n in judged if similar[n] >= 0.8}
    assert lost.isdisjoint(f"{x}{n}" for n in judged if similar[n] < 0.8 for x in "ab")
    assert sum(similar[n] >= 0.8 for n in judged) > 5 and sum(0.6 < similar[n] < 0.8 for n in judged) > 10


def test_copy_of_a_held_out_text_is_dropped_whatever_its_source(kept, raw):
    write_documents(raw / "heldout", [Document("held", kept[0].text + " And a few words more.", "s")])
    _, _, rejects = curated(raw, dedup={"priority": ("grimm", "oz", "carroll")})
    assert rejects[kept[0].id]["reason"] == REASONS[Fate.NEAR_HELDOUT]
    assert rejects[kept[0].id]["survivor"] == "held"


@pytest.mark.parametrize("by", [{"priority": ("good",)}, {"quality": "worth"}])
def test_best_of_equal_texts_survives_wherever_it_is(kept, raw, by):
    places = [("first", 1), ("good", 2), ("last", 1)]
    texts = [d.text for d in kept][:8]
    write_rows(
        raw,
        [
            {"id": f"{source}{n}", "text": text, "source": source, "worth": worth}
            for source, worth in places
            for n, text in enumerate(texts)
        ],
    )
    result, documents, rejects = curated(raw, dedup=by, filters=())
    assert {d.id for d in documents} == {f"good{n}" for n in range(8)}
    assert balances(result["funnel"])
    assert {name: (row["reason"], row["survivor"]) for name, row in rejects.items()} == {
        f"{source}{n}": (REASONS[Fate.SAME_TEXT], f"good{n}") for source in ("first", "last") for n in range(8)
    }
    out = raw.parent / "out"
    assert {one["id"] for one in history(out, "good3")["copies"]} == {"first3", "last3"}
    assert "survivor: good3" in "\n".join(history_lines(history(out, "last3")))


def test_equal_text_names_the_survivor_of_the_document_it_equals(kept, raw):
    text = kept[0].text
    rows = [("near", f"{text} And a few words more.", 2), ("first", text, 1), ("again", text, 0)]
    write_rows(raw, [{"id": name, "text": one, "worth": worth} for name, one, worth in rows])
    _, _, rejects = curated(raw, dedup={"quality": "worth"}, filters=())
    assert {name: (row["step"], row["survivor"]) for name, row in rejects.items()} == {
        "first": ("near duplicates", "near"),
        "again": ("exact duplicates", "near"),
    }


def test_first_of_equal_texts_ids_and_addresses_stays(raw):
    """A dropped document drops no other: "b" keeps its id free, and its address too."""
    url = "https://a.example/1"
    rows = [
        ("a", "one text", url),
        ("b", "One text!", "https://a.example/2"),
        ("a", "a second text", ""),
        ("b", "a third text", "https://a.example/2"),
        ("c", "a fourth text", "http://www.a.example/1?utm_source=x"),
        ("d", "a fifth text", ""),
        ("e", "a sixth text", ""),
    ]
    write_rows(raw, [{"id": i, "text": text, "url": one} for i, text, one in rows])
    curated(raw, dedup={"urls": True}, filters=())
    found = [(row["text"], row["reason"], row["survivor"]) for row in rejects_of(raw.parent / "out")]
    assert found == [
        ("One text!", REASONS[Fate.SAME_TEXT], "a"),
        ("a second text", REASONS[Fate.SAME_ID], "a"),
        ("a fourth text", REASONS[Fate.SAME_ADDRESS], "a"),
    ]


def test_pieces_of_a_text_share_its_address_but_pieces_of_its_next_snapshot_are_dropped(raw):
    def piece(source, identity, number, url):
        text = f"{GOOD} This is piece {number} of {identity} in {source}."
        cut = {"id": identity, "piece": number}
        return {"id": f"{identity}-{number}", "text": text, "source": source, "url": url, "cut_from": cut}

    first = [piece("old", "7", number, "https://a.example/1") for number in range(3)]
    # The next snapshot numbers its rows in the same way, and the page has become longer.
    later = [piece("new", "7", number, "http://a.example/1?utm_source=x") for number in range(4)]
    other = [piece("new", "8", number, "https://a.example/2") for number in range(2)]
    rows = [*first, *({**row, "id": f"{row['id']}~2"} for row in later), *other]
    write_rows(raw, rows)
    _, documents, rejects = curated(raw, dedup={"urls": True, "threshold": 1}, filters=())
    assert [document.id for document in documents] == [row["id"] for row in (*first, *other)]
    assert {(row["reason"], row["survivor"]) for row in rejects.values()} == {(REASONS[Fate.SAME_ADDRESS], "7-0")}
    assert len(rejects) == len(later)


@pytest.mark.broad
def test_document_that_a_harvest_accepted_is_not_too_long_for_curation(tmp_path):
    """Neither for the limit of a document, which the harvest raised, nor as a compression bomb."""
    longest = HarvestConfig().read.longest_bytes
    text = "Some words of a text without an end. " * (longest // 37 + 1)
    rows = [{"id": "long", "text": text}, *({"id": f"d{n}", "text": f"A short one, {n}."} for n in range(9))]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for folder in ("raw", "out"):
        (tmp_path / folder).mkdir()
    config = HarvestConfig(read={"longest_bytes": 2 * longest}, longest=2 * longest)
    harvest(config, tmp_path / "raw", seed=2, corpus=tmp_path / "in.jsonl")
    result, documents, _ = curated(tmp_path / "raw", filters=())
    assert result["funnel"][0]["quarantined"] == 0
    assert "long" in {d.id for d in documents}


def test_no_piece_gets_the_id_of_another_document(kept, raw):
    first = next(d.id.removesuffix("#1") for d in kept if d.id.endswith("#1"))
    other = {"id": f"{first}#0", "text": kept[0].text[::-1], "source": "s"}
    (raw / "jsonl" / "part-90000.jsonl").write_text(json.dumps(other) + "\n")
    ids = [d.id for d in curated(raw, filters=())[1]]
    assert len(ids) == len({*ids})
    out = raw.parent / "out"
    assert [one["text"] for one in history(out, f"{first}#0")["kept"]] == [other["text"]]
    pieces = [one["id"] for one in history(out, first)["kept"]]
    assert len(pieces) > 1 and pieces == [f"{first}#{n + 1}" for n in range(len(pieces))]


def test_truncated_file_is_quarantined(folders, raw):
    path = next((raw / "jsonl").iterdir())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    result, _, rejects = curated(raw)
    assert result["funnel"][0]["quarantined"] == 1
    assert result["funnel"][0]["documents"] < folders[1]["funnel"][0]["documents"]
    assert balances(result["funnel"])
    assert [name for name, row in rejects.items() if row["step"] == "read"] == [f"jsonl/{path.name}"]


def test_unusable_harvests_are_refused(tmp_path, raw):
    folder = tmp_path / "none"
    folder.mkdir()
    for content, match in ((None, "corpus harvest"), ("", "no raw file"), ("nothing of the kind", r"a\.warc\.gz")):
        if content is not None:
            (folder / "warc").mkdir(exist_ok=True)
        if content:
            (folder / "warc" / "a.warc.gz").write_text(content)
        with pytest.raises(DataError, match=match):
            curate(CurateConfig(), folder, folder, seed=1)
    with pytest.raises(DataError, match="most were dropped by 'quality'"):
        curated(raw, quality={"characters": 10**9})
    write_documents(raw / "heldout", [Document("held", GOOD * 9, "s")])
    write_rows(raw, [{"id": f"r{n}", "text": GOOD * 9, "source": "s"} for n in range(3)])
    with pytest.raises(DataError, match="none of the 3 documents .* most were dropped by 'exact duplicates' "):
        curated(raw, filters=())
    (raw / "evaluation_items.jsonl").write_text("{broken")
    with pytest.raises(DataError, match="evaluation_items"):
        curated(raw)


# Steps and `run_steps` -----------------------------------------------------------------------------------------------

ODD = Step("odd", lambda d: Keep(noted(d, odd=True)) if len(d.text) % 2 else Drop("even"))
SMALL_AND_ODD = Step("small", lambda d: Keep(d) if len(d.text) < 6 and d.metadata["odd"] else Drop("large"))


def test_steps_run_one_after_another_and_their_funnel_balances():
    documents = [Document(str(n), "x" * n, "s") for n in range(10)]
    steps = Steps([ODD, SMALL_AND_ODD])
    results = list(steps.run(documents))
    assert len(results) == len(documents)
    assert [r.id for r in results if isinstance(r, Document)] == ["1", "3", "5"]
    rejects = [r for r in results if isinstance(r, Reject)]
    assert {(r.step, r.reason) for r in rejects} == {("odd", "even"), ("small", "large")}
    funnel = [tally.as_json() for tally in (Tally("read", documents=10), *steps.tallies)]
    assert balances(funnel)
    assert funnel[-1]["bytes"] == 9
    funnel[1]["dropped"]["even"] -= 1
    assert not balances(funnel)


def test_figure_is_found_by_its_path_and_a_missing_one_is_minus_infinity():
    metadata = {"score": 0.5, "quality": {"words": 7, "kind": "prose"}}
    assert (figure_of(metadata, "score"), figure_of(metadata, "quality.words")) == (0.5, 7.0)
    assert [figure_of({"n": sign * 10**400}, "n") for sign in (1, -1)] == [float("inf"), float("-inf")]
    for path in ("", "quality", "quality.kind", "quality.words.more", "nothing"):
        assert figure_of(metadata, path) == float("-inf")


@pytest.fixture
def lines(tmp_path):
    """Two JSON line files with good texts, short texts, and a damaged line in each."""
    for name in ("one", "two"):
        rows = [json.dumps({"id": f"{name}{n}", "text": f"{GOOD * (n % 10)} and number {n}."}) for n in range(40)]
        rows.insert(7, "{damaged")
        folder = tmp_path / "lines" / name
        folder.mkdir(parents=True)
        (folder / "part.jsonl").write_text("\n".join(rows))
    return tmp_path / "lines"


def run(tmp_path, source, *names, name="out", **more):
    out = tmp_path / name
    out.mkdir(exist_ok=True)
    config = CurateConfig(filters=names)
    result = run_steps(config, Input(source), out, seed=1, work=tmp_path / f"{name}.work", **more)
    return out, result["funnel"]


def test_reading_alone_quarantines_damage_and_keeps_everything_else(tmp_path, lines):
    out, funnel = run(tmp_path, lines)
    assert [tally["step"] for tally in funnel] == ["read"]
    assert (funnel[0]["documents"], funnel[0]["quarantined"]) == (80, 2)
    documents = list(read_documents(out / "documents"))
    assert len(documents) == 80 and {d.source for d in documents} == {"one", "two"}
    assert [row["step"] for row in rejects_of(out)] == ["read", "read"]
    with pytest.raises(DataError, match="corpus step read"):  # a command that needs complete input
        list(documents_at(Input(lines)))


def test_steps_alone_do_what_they_do_together(tmp_path, lines):
    read, _ = run(tmp_path, lines, name="read")
    clean, _ = run(tmp_path, read, "clean", name="clean")
    quality, funnel = run(tmp_path, clean, "quality", name="quality")
    assert balances(funnel)
    steps = Steps(named_steps(CurateConfig(filters=("clean", "quality")), seed=1))
    every = list(documents_at(Input(read)))
    expected = [d for d in steps.run(every) if isinstance(d, Document)]
    assert list(read_documents(quality / "documents")) == expected
    assert {r["id"] for r in rejects_of(quality)} | {d.id for d in expected} == {d.id for d in every}
    assert 0 < len(expected) < 80


def test_steps_killed_after_every_part_resume_to_the_same_bytes(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(work, "PART_BYTES", 2000)
    expected, _ = run(tmp_path, lines, "quality", name="expected")
    real, kills = work.lay_down, 0

    class Killed(BaseException):
        pass

    def lay_down(*words, **more):
        real(*words, **more)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(work, "lay_down", lay_down)
        while kills < 100:
            try:
                out, _ = run(tmp_path, lines, "quality", name="killed")
                break
            except Killed:
                kills += 1
    assert 5 < kills < 100
    assert digests(out) == digests(expected)
    monkeypatch.setattr("trivium.corpus.read.inputs.read_any", None)  # the output may be lost before it has its name
    shutil.rmtree(out)
    assert digests(run(tmp_path, lines, "quality", name="killed")[0]) == digests(expected)


def test_store_is_read_with_its_metadata(tmp_path):
    documents = [Document("a", GOOD * 9, "s", {"url": "http://x/"}), Document("b", "x", "t")]
    write_documents(tmp_path / "store", documents)
    out, _ = run(tmp_path, tmp_path / "store")
    assert list(read_documents(out / "documents")) == documents == list(documents_at(Input(tmp_path / "store")))


def test_unknown_step_is_refused_before_anything_is_read(tmp_path, lines):
    with pytest.raises(ConfigError, match="qualty"):
        run(tmp_path, lines, "qualty")
    assert not (tmp_path / "out.work").exists()


def test_rejects_are_valid_gzip_also_if_there_are_none(tmp_path, lines):
    out, funnel = run(tmp_path, lines, "quality")
    with gzip.open(out / "rejects.jsonl.gz", "rt") as file:
        assert len(list(file)) == sum(funnel[1]["dropped"].values()) + funnel[0]["quarantined"]
    write_documents(tmp_path / "store", [Document("a", GOOD, "s")])
    out, _ = run(tmp_path, tmp_path / "store", name="none")
    packed = (out / "rejects.jsonl.gz").read_bytes()
    assert subprocess.run(["gzip", "-dc"], input=packed, capture_output=True, check=True).stdout == b""
    assert not list(rejects_of(out))


def test_repeated_ids_are_renamed_as_a_harvest_renames_them(tmp_path, monkeypatch):
    (tmp_path / "raw").mkdir()
    for name in ("a", "b"):
        rows = [{"id": n, "text": f"{GOOD * 3}{name}{n}"} for n in range(10)] + [{"id": "7~2", "text": name}]
        lines = [json.dumps(row) for row in rows]
        (tmp_path / "raw" / f"{name}.jsonl").write_text("\n".join([*lines[:3], "{damaged", *lines[3:]]))
    monkeypatch.setattr(work, "PART_BYTES", 1000)
    out, _ = run(tmp_path, tmp_path / "raw", "clean")
    kept = list(read_documents(out / "documents"))
    assert len({d.id for d in kept}) == len(kept) == 22
    assert {d.id: d.text[-2:] for d in kept}["7~3"] == "b7"  # 7~2 exists
    assert harvested(tmp_path, tmp_path / "raw") == {(d.id, d.source, d.text) for d in kept}
    for file in (tmp_path / "raw").iterdir():
        file.write_text(file.read_text().replace("{damaged", ""))
    assert [(d.id, d.text) for d in documents_at(Input(tmp_path / "raw"))] == [(d.id, d.text) for d in kept]


def harvested(tmp_path, corpus):
    folder = tmp_path / "harvest"
    folder.mkdir()
    harvest(HarvestConfig(heldout_fraction=0.0), folder, seed=1, corpus=corpus)
    every = (d for name in ("jsonl", "heldout") for d in as_read_at(Input(folder / name)))
    return {(d.id, d.source, d.text) for d in every}


@pytest.mark.parametrize("named", ["src1", "latest", "src1/one.txt", "src1/shard-00001.jsonl"])
def test_sources_and_ids_are_those_of_a_harvest(tmp_path, named):
    """This includes a single file, and a folder behind a link."""
    (tmp_path / "src1").mkdir()
    (tmp_path / "src1" / "one.txt").write_text(GOOD * 9)
    (tmp_path / "src1" / "shard-00001.jsonl").write_text(json.dumps({"text": GOOD}) + "\n{damaged")
    (tmp_path / "latest").symlink_to(tmp_path / "src1")
    out, _ = run(tmp_path, tmp_path / named)
    found = {(d.id, d.source) for d in read_documents(out / "documents")}
    assert found == {(i, source) for i, source, _ in harvested(tmp_path, tmp_path / named)}
    assert {row["id"] for row in rejects_of(out)} <= {"shard-00001.jsonl"}


@pytest.mark.parametrize("folder", ["", "below"])
def test_manifest_of_other_software_is_not_read_as_a_store(tmp_path, folder):
    raw = tmp_path / "raw"
    (raw / folder).mkdir(parents=True)
    (raw / folder / "a.jsonl").write_text(json.dumps({"id": "a", "text": GOOD}))
    for number, manifest in enumerate(['{"files": ["a.jsonl"]}', '["a.jsonl"]', '{"format": "other-1"}']):
        (raw / folder / "manifest.json").write_text(manifest)
        out, _ = run(tmp_path, raw, name=f"out{number}")
        assert list(read_documents(out / "documents")) == list(documents_at(Input(raw)))
    for ours in ("{", '{"format": "trivium-tokens-1"}'):
        (raw / "manifest.json").write_text(ours)
        with pytest.raises(DataError, match="manifest.json is not "):
            list(documents_at(Input(raw)))


@pytest.mark.broad
def test_two_processes_give_the_bytes_of_one(tmp_path, lines):
    one, _ = run(tmp_path, lines, "quality", name="one")
    two, _ = run(tmp_path, lines, "quality", name="two", engine=Daft("native", workers=2))
    assert digests(one) == digests(two)
