"""Laws of curation: what is planted is caught, what is honest stays, and every document is accounted for."""

import gzip
import hashlib
import json
import unicodedata
from html import escape

import pytest

from corpus.funnels import balances
from trivium.corpus.config import CurateConfig, HarvestConfig
from trivium.corpus.curate import curate, funnel_lines
from trivium.corpus.dedup.groups import SAME_TEXT
from trivium.corpus.dedup.minhash import jaccard, shingles
from trivium.corpus.document import Document
from trivium.corpus.harvest.harvest import harvest
from trivium.corpus.publish.views import history, history_lines
from trivium.corpus.read.warc import Page, write_warc
from trivium.corpus.select.decontaminate import keys_of
from trivium.corpus.store import read_documents, write_documents
from trivium.errors import DataError
from trivium.seeds import generator_for

SMALL = HarvestConfig(max_bytes=900_000, packages=("networkx",), evaluation_items=40)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("curate")
    (root / "raw").mkdir()
    (root / "out").mkdir()
    harvest(SMALL, root / "raw", seed=1234)
    return root, curate(CurateConfig(), root / "raw", root / "out", seed=1234)


def rejects(out):
    with gzip.open(out / "rejects.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def raw_copy(folders, tmp_path):
    """A harvest that may be damaged, and an output folder."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    for path in (folders[0] / "raw").rglob("*"):
        target = raw / path.relative_to(folders[0] / "raw")
        target.mkdir(parents=True, exist_ok=True) if path.is_dir() else target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            target.write_bytes(path.read_bytes())
    out.mkdir()
    return raw, out


def test_every_kind_of_planted_junk_is_caught_and_honest_documents_stay(folders):
    _, result = folders
    assert set(result["planted"]) == {"near_duplicate", "boilerplate", "other_language", "low_quality", "leaked_item"}
    for kind, counts in result["planted"].items():
        assert counts["planted"] >= 8
        assert counts["caught"] >= 0.95 * counts["planted"], kind
    assert result["honest"]["documents"] > 200
    assert result["honest"]["lost"] <= 0.02 * result["honest"]["documents"]


def test_the_funnel_balances_and_agrees_with_the_files(folders):
    root, result = folders
    funnel = result["funnel"]
    assert funnel == json.loads((root / "out" / "funnel.json").read_text())
    assert funnel[0]["step"] == "read"
    assert balances(funnel)
    documents = list(read_documents(root / "out" / "documents"))
    assert funnel[-1]["documents"] == len(documents) == len({d.id for d in documents})
    assert funnel[-1]["bytes"] == sum(d.text_bytes for d in documents)
    dropped = {(r["step"], r["reason"]) for r in rejects(root / "out")}
    assert dropped == {(e["step"], reason) for e in funnel for reason in e["dropped"]}
    assert len(rejects(root / "out")) == sum(sum(e["dropped"].values()) for e in funnel)
    assert not (root / "out" / ".work").exists()


def test_curation_sees_nothing_of_what_was_planted(folders, tmp_path):
    raw, out = raw_copy(folders, tmp_path)
    (raw / "planted.json").unlink()
    result = curate(CurateConfig(), raw, out, seed=1234)
    assert "planted" not in result
    for path in (folders[0] / "out" / "documents").iterdir():
        assert (out / "documents" / path.name).read_bytes() == path.read_bytes()


def test_the_same_seed_gives_the_same_bytes(folders, tmp_path):
    curate(CurateConfig(), folders[0] / "raw", tmp_path, seed=1234)
    for path in sorted(p for p in (folders[0] / "out").rglob("*") if p.is_file()):
        again = tmp_path / path.relative_to(folders[0] / "out")
        assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(path.read_bytes()).digest(), path


def test_every_planted_leak_is_cut_out(folders):
    root, result = folders
    items = map(json.loads, (root / "raw" / "evaluation_items.jsonl").read_text().splitlines())
    texts = {row["id"]: row["text"] for row in items}
    config = CurateConfig().decontamination
    spared = result["decontamination"]["common_keys_spared"].keys()
    keys = {key for text in texts.values() for key in keys_of(text, config)} - spared
    assert len(keys) > 500
    for document in read_documents(root / "out" / "documents"):
        assert keys.isdisjoint(keys_of(document.text, config)), document.id
    leaks = {leak["item"] for leak in json.loads((root / "raw" / "planted.json").read_text())["leaked_item"]}
    assert leaks <= set(result["decontamination"]["items_seen"])


def test_texts_of_a_benchmark_that_the_config_names_are_cut_out_too(folders, tmp_path):
    document = next(d for d in read_documents(folders[0] / "out" / "documents") if len(d.text) > 3000)
    words = document.text.split()[200:230]
    leaked, kept = " ".join(words), " ".join(document.text.split()[:12])
    bench = tmp_path / "bench.jsonl"
    bench.write_text(json.dumps({"text": "Nothing of this stands there."}) + "\n" + json.dumps({"text": leaked}))
    (tmp_path / "out").mkdir()
    config = CurateConfig(decontamination={"against": (str(bench),)})
    curate(config, folders[0] / "raw", tmp_path / "out", seed=1234)
    left = [" ".join(d.text.split()) for d in read_documents(tmp_path / "out" / "documents")]
    assert not any(leaked in text for text in left) and any(kept in text for text in left)
    found = json.loads((tmp_path / "out" / "decontamination.json").read_text())
    assert f"{bench}:1" in found["items_seen"] and f"{bench}:0" not in found["items_seen"]


def test_no_document_is_removed_without_a_partner_above_the_threshold_and_none_is_left_with_one(folders):
    root, _ = folders
    kept = {d.id: shingles(d.text, size=5) for d in read_documents(root / "out" / "documents")}
    gone = [r for r in rejects(root / "out") if r["step"] == "near duplicates"]
    assert gone
    assert all(r["jaccard"] >= 0.8 for r in gone)
    ids = sorted(kept)
    assert not [(a, b) for n, a in enumerate(ids) for b in ids[n + 1 :] if jaccard(kept[a], kept[b]) >= 0.8]


def test_of_pairs_about_the_threshold_exactly_those_above_it_lose_one(folders, tmp_path):
    raw, out = raw_copy(folders, tmp_path)
    draw = generator_for(5, "pairs")
    texts = [d.text for d in read_documents(folders[0] / "out" / "documents") if 300 < len(d.text.split()) < 600]
    rows, similar = [], {}
    for number, text in enumerate(texts[:60]):
        words = text.split()
        changed = list(words)
        for place in draw.choice(len(words), size=int(len(words) * (0.01 + 0.001 * number)), replace=False):
            changed[place] = words[draw.integers(len(words))]
        pair = [" ".join(words), " ".join(changed)]
        similar[number] = jaccard(*(shingles(each, size=5) for each in pair))
        rows += [
            {"id": f"{name}{number}", "text": each, "source": "wiki"} for name, each in zip("ab", pair, strict=True)
        ]
    for path in [*(raw / "jsonl").iterdir(), *(raw / "warc").iterdir()]:  # their models would be duplicates too
        path.unlink()
    (raw / "jsonl" / "part-00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curate(CurateConfig(), raw, out, seed=1234)
    by_step = {r["id"]: r["step"] for r in rejects(out)}
    lost = {name for name, step in by_step.items() if step == "near duplicates"}
    judged = [n for n in similar if {by_step.get(f"{x}{n}") for x in "ab"} <= {None, "near duplicates"}]
    assert lost >= {f"b{n}" for n in judged if similar[n] >= 0.8}
    assert lost.isdisjoint(f"{x}{n}" for n in judged if similar[n] < 0.8 for x in "ab")
    assert sum(similar[n] >= 0.8 for n in judged) > 5 and sum(0.6 < similar[n] < 0.8 for n in judged) > 10


def test_documents_carry_the_history_of_their_curation(folders):
    documents = list(read_documents(folders[0] / "out" / "documents"))
    assert all({"url", "language", "quality", "repetition"} <= d.metadata.keys() for d in documents)
    assert any("decontamination" in d.metadata for d in documents)


def test_a_text_held_out_for_evaluation_is_not_left_in_training(folders, tmp_path):
    raw, out = raw_copy(folders, tmp_path)
    (document, *_) = read_documents(folders[0] / "out" / "documents")
    write_documents(raw / "heldout", [Document("held", document.text + " And a few words more.", "s")])
    # even when every source is said to be good
    config = CurateConfig(dedup={"priority": ("stdlib", "pydoc", "networkx")})
    curate(config, raw, out, seed=1234)
    assert document.id not in {d.id for d in read_documents(out / "documents")}
    (reject,) = [r for r in rejects(out) if "held-out" in r["reason"]]
    assert (reject["id"], reject["survivor"]) == (document.id, "held")


def test_of_near_duplicates_the_one_with_the_best_figure_survives_when_the_config_names_one(folders, tmp_path):
    raw, out = raw_copy(folders, tmp_path)
    curate(CurateConfig(dedup={"quality": "quality.words"}), raw, out, seed=1234)
    words = {d.id: d.metadata["quality"]["words"] for d in read_documents(out / "documents")}
    near = [r for r in rejects(out) if r["step"] == "near duplicates" and r["survivor"] in words]
    assert near
    assert all(r["metadata"]["quality"]["words"] <= words[r["survivor"]] for r in near)


@pytest.mark.parametrize("by", [{"priority": ("good",)}, {"quality": "worth"}])
def test_of_equal_texts_too_the_best_survives_wherever_it_stands(folders, tmp_path, by):
    raw, out = raw_copy(folders, tmp_path)
    texts = [d.text for d in read_documents(folders[0] / "out" / "documents")][:8]
    places = [("first", 1), ("good", 2), ("last", 1)]
    rows = [
        {"id": f"{source}{n}", "text": text, "source": source, "worth": worth}
        for source, worth in places
        for n, text in enumerate(texts)
    ]
    for path in [*(raw / "jsonl").iterdir(), *(raw / "warc").iterdir()]:
        path.unlink()
    for number, row in enumerate(rows):
        (raw / "jsonl" / f"part-{number:05d}.jsonl").write_text(json.dumps(row) + "\n")
    result = curate(CurateConfig(dedup=by, filters=()), raw, out, seed=1234)
    assert {d.id for d in read_documents(out / "documents")} == {f"good{n}" for n in range(8)}
    assert balances(result["funnel"])
    assert next(t for t in result["funnel"] if t["step"] == "exact duplicates")["dropped"] == {SAME_TEXT: 16}
    survivors = {row["id"]: row["survivor"] for row in rejects(out) if row["reason"] == SAME_TEXT}
    assert survivors == {f"{source}{n}": f"good{n}" for source in ("first", "last") for n in range(8)}
    assert {one["id"] for one in history(out, "good3")["copies"]} == {"first3", "last3"}
    assert "survivor: good3" in "\n".join(history_lines(history(out, "last3")))


def test_an_equal_text_names_the_document_that_is_left_also_where_that_one_survives_for_the_first(folders, tmp_path):
    raw, out = raw_copy(folders, tmp_path)
    text = next(d.text for d in read_documents(folders[0] / "out" / "documents"))
    for path in [*(raw / "jsonl").iterdir(), *(raw / "warc").iterdir()]:
        path.unlink()
    rows = [("near", f"{text} And a few words more.", 2), ("first", text, 1), ("again", text, 0)]
    lines = (json.dumps({"id": name, "text": of, "worth": worth}) + "\n" for name, of, worth in rows)
    (raw / "jsonl" / "part-00000.jsonl").write_text("".join(lines))
    curate(CurateConfig(dedup={"quality": "worth"}, filters=()), raw, out, seed=1234)
    assert {row["id"]: (row["step"], row["survivor"]) for row in rejects(out)} == {
        "first": ("near duplicates", "near"),
        "again": ("exact duplicates", "near"),
    }


@pytest.mark.broad
def test_what_a_harvest_took_is_not_refused_as_too_long_when_it_is_read_again(tmp_path):
    """Neither for the limit of a document, which the harvest raised, nor as a bomb, for it is packed well."""
    longest = HarvestConfig().read.longest_bytes
    text = "Some words of a text without an end. " * (longest // 37 + 1)
    rows = [{"id": "long", "text": text}, *({"id": f"d{n}", "text": f"A short one, {n}."} for n in range(9))]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for folder in ("raw", "out"):
        (tmp_path / folder).mkdir()
    read = {"longest_bytes": 2 * longest}
    config = HarvestConfig(read=read, longest=2 * longest)
    harvest(config, tmp_path / "raw", seed=2, corpus=tmp_path / "in.jsonl")
    result = curate(CurateConfig(filters=()), tmp_path / "raw", tmp_path / "out", seed=2)
    assert result["funnel"][0]["quarantined"] == 0
    assert "long" in {d.id for d in read_documents(tmp_path / "out" / "documents")}


def test_no_piece_gets_the_id_of_another_document(folders, tmp_path):
    raw, out = raw_copy(folders, tmp_path)
    before = list(read_documents(folders[0] / "out" / "documents"))
    whole = next(d.id.removesuffix("#1") for d in before if d.id.endswith("#1"))
    other = {"id": f"{whole}#0", "text": before[0].text[::-1], "source": "s"}
    (raw / "jsonl" / "part-90000.jsonl").write_text(json.dumps(other) + "\n")
    curate(CurateConfig(filters=()), raw, out, seed=1234)
    ids = [d.id for d in read_documents(out / "documents")]
    assert len(ids) == len({*ids})
    assert [one["text"] for one in history(out, f"{whole}#0")["kept"]] == [other["text"]]
    pieces = [one["id"] for one in history(out, whole)["kept"]]
    assert len(pieces) > 1 and pieces == [f"{whole}#{n + 1}" for n in range(len(pieces))]


@pytest.mark.parametrize("form", ["decomposed", "ligatures", "page"])
def test_a_text_that_a_benchmark_writes_in_another_way_is_cut_out_too(folders, tmp_path, form):
    raw, out = raw_copy(folders, tmp_path)
    leaked = (
        "The naïve café owner in Zürich offered the final résumé of his office to a fiancée who, flawless records "
        "say, refused the élite façade and left Málaga for a flat of her own in Köln."
    )
    others = [f"Sentence {n} of this page tells of thing{n} and of matter{7 * n}." for n in range(60)]
    row = {"id": "leaky", "text": " ".join([*others[:30], leaked, *others[30:]]), "source": "s"}
    (raw / "jsonl" / "part-90000.jsonl").write_text(json.dumps(row) + "\n")
    bench = tmp_path / "bench.jsonl"
    written = {
        "decomposed": unicodedata.normalize("NFD", leaked),
        "ligatures": leaked.replace("fi", "ﬁ").replace("fl", "ﬂ"),
        "page": leaked,
    }[form]
    bench.write_text(json.dumps({"text": written}) + "\n")
    if form == "page":
        body = escape(leaked).encode("ascii", "xmlcharrefreplace")
        bench = tmp_path / "bench.warc.gz"
        write_warc(bench, [Page("https://a.example/", "text/html", None, b"<article><p>%s</p></article>" % body)])
    assert form == "page" or written != leaked
    config = CurateConfig(decontamination={"against": (str(bench),)}, filters=())
    found = curate(config, raw, out, seed=1234)["decontamination"]
    assert f"{bench}:0" in found["items_seen"]
    assert not any("fiancée who" in d.text for d in read_documents(out / "documents"))


def test_a_truncated_file_is_quarantined_and_the_funnel_still_balances(folders, tmp_path):
    raw, out = raw_copy(folders, tmp_path)
    path = next((raw / "jsonl").iterdir())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    result = curate(CurateConfig(), raw, out, seed=1234)
    assert result["funnel"][0]["quarantined"] == 1
    assert result["funnel"][0]["documents"] < folders[1]["funnel"][0]["documents"]
    assert balances(result["funnel"])
    (reject,) = [r for r in rejects(out) if r["step"] == "read"]
    assert reject["id"] == f"jsonl/{path.name}"


def test_a_folder_that_is_no_harvest_or_an_empty_one_is_an_error(folders, tmp_path):
    with pytest.raises(DataError, match="corpus harvest"):
        curate(CurateConfig(), tmp_path, tmp_path, seed=1)
    (tmp_path / "warc").mkdir()
    with pytest.raises(DataError, match="no raw file"):
        curate(CurateConfig(), tmp_path, tmp_path, seed=1)
    (tmp_path / "warc" / "a.warc.gz").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="a.warc.gz"):
        curate(CurateConfig(), tmp_path, tmp_path, seed=1)
    raw, out = raw_copy(folders, tmp_path / "copy")
    with pytest.raises(DataError, match="quality"):
        curate(CurateConfig(quality={"characters": 10**9}), raw, out, seed=1)
    (raw / "evaluation_items.jsonl").write_text("{broken")
    with pytest.raises(DataError, match="evaluation_items"):
        curate(CurateConfig(), raw, out, seed=1)


def test_a_corpus_of_which_comparison_leaves_nothing_is_an_error_that_says_so(tmp_path):
    raw, text = tmp_path / "raw", "The parser reads each of the words that stand in the line. " * 9
    (raw / "jsonl").mkdir(parents=True)
    rows = [json.dumps({"id": f"r{n}", "text": text, "source": "s"}) for n in range(3)]
    (raw / "jsonl" / "part-00000.jsonl").write_text("\n".join(rows))
    write_documents(raw / "heldout", [Document("held", text, "s")])
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="none of the 3 documents .* most were dropped by 'exact duplicates' "):
        curate(CurateConfig(filters=()), raw, tmp_path / "out", seed=1)


def test_the_funnel_prints_one_line_for_each_step_kind_and_the_honest(folders):
    _, result = folders
    lines = funnel_lines(result)
    assert len(lines) == 1 + len(result["funnel"]) + len(result["planted"]) + 1
    assert all(any(e["step"] in line for line in lines) for e in result["funnel"])
    assert "honest documents lost" in lines[-1]
    assert funnel_lines({"funnel": result["funnel"]}) == lines[: 1 + len(result["funnel"])]
