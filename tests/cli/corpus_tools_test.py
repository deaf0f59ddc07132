"""`corpus step` and `corpus show`, as a user types them."""

import gzip
import json
import re
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from evaluation.models import plan_of, write_checkpoint
from tokens.curated import curated, documents
from trivium.cli.corpus import app
from trivium.corpus.config import ClassifierConfig, CurateConfig
from trivium.corpus.dedup import deduplicate
from trivium.corpus.dedup.deduplicate import KINDS
from trivium.corpus.document import Document
from trivium.corpus.pipeline import files_beside
from trivium.corpus.publish.store import read_documents, write_documents
from trivium.corpus.publish.views import differences_between
from trivium.corpus.read.files import Input
from trivium.corpus.read.inputs import documents_at
from trivium.corpus.select.classifier import train
from trivium.corpus.select.evaluation_texts import evaluation_texts
from trivium.errors import ConfigError, DataError
from trivium.provenance import publishing, read_stamp
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize

pytestmark = pytest.mark.usefixtures("kernels")
GOOD = [
    f"It was the best of times and it was the worst of times, chapter {n}, said the old man. " * 8 for n in range(60)
]
BAD = [f"click here {n} buy now login cart price {n} sale menu home cookies accept " * 8 for n in range(60)]


def call(*words):
    ended = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


@pytest.fixture
def stores(tmp_path):
    for name, texts in (("good", GOOD), ("bad", BAD)):
        write_documents(tmp_path / name, [Document(f"{name}{n}", t, name) for n, t in enumerate(texts)])
    return tmp_path


def test_evaluation_texts_under_another_field_are_read_with_the_remedy_of_the_error(tmp_path):
    given, out = tmp_path / "bench.jsonl", tmp_path / "out"
    given.write_text(json.dumps({"question": GOOD[0]}) + "\n")

    def texts(path):
        config = CurateConfig(decontamination={"against": (str(path),)})
        return [*evaluation_texts(tmp_path, config).values()]

    with pytest.raises(DataError, match=r"harvest\.read\.text.*`trivium corpus step read`.* --set harvest\.read\.…"):
        texts(given)
    call("step", "read", given, out, "--set", "harvest.read.text=[question]")
    assert texts(out) == [GOOD[0].strip()]


def test_a_step_writes_documents_rejects_funnel_and_stamp(stores):
    said = call("step", "quality", stores / "good", stores / "out")
    assert {p.name for p in (stores / "out").iterdir()} == {
        "documents",
        "rejects.jsonl.gz",
        "funnel.json",
        "provenance.json",
    }
    assert read_stamp(stores / "out")["verb"] == "corpus step quality"
    assert "quality: " in said and not (stores / ".out.work").exists()
    call("step", "language", stores / "out", stores / "next", "--set", "curate.language.percent=50")
    assert all(d.metadata["language"] == "en" for d in read_documents(stores / "next" / "documents"))


def test_a_step_that_is_refused_says_its_name_and_leaves_nothing(stores):
    before = sorted(stores.iterdir())
    with pytest.raises(ConfigError, match="NAME 'bogus': no such step; known: .*quality, read, repetition"):
        call("step", "bogus", stores / "good", stores / "out")
    with pytest.raises(ConfigError, match="classifier.model is not set"):
        call("step", "classifier", stores / "good", stores / "out")
    assert sorted(stores.iterdir()) == before


@pytest.mark.parametrize("by", KINDS)
def test_deduplication_of_damaged_input_names_it_and_leaves_nothing(stores, by):
    rows = [json.dumps({"id": f"r{n}", "text": text}) for n, text in enumerate(GOOD)]
    (stores / "in.jsonl").write_text("\n".join([*rows, '{"id": "half', *rows]))
    before = sorted(stores.iterdir())
    with pytest.raises(DataError, match="line 61 is not JSON"):
        call("step", "dedup", stores / "in.jsonl", stores / "out", "--by", by)
    assert sorted(stores.iterdir()) == before


def test_a_step_refuses_a_store_whose_bytes_changed_and_leaves_nothing(stores):
    shard = next((stores / "good").glob("*.parquet"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 255
    shard.write_bytes(content)
    before = sorted(stores.iterdir())
    with pytest.raises(DataError, match="does not have the sha256 in the manifest"):
        call("step", "read", stores / "good", stores / "out")
    assert sorted(stores.iterdir()) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_deduplication_that_was_cut_off_goes_on_with_what_was_made(stores, monkeypatch, error):
    def cut_off(*given):
        raise error("here")

    with monkeypatch.context() as patch:
        patch.setattr(deduplicate, "find_duplicates", cut_off)
        assert CliRunner().invoke(app, ["step", "dedup", str(stores / "good"), str(stores / "out")]).exit_code != 0
    assert (stores / ".out.work").is_dir()
    monkeypatch.setattr(deduplicate, "write_part", cut_off)
    call("step", "dedup", stores / "good", stores / "out")
    assert not (stores / ".out.work").exists()


@pytest.mark.parametrize("verb", ["read", "dedup", "select", "train", "score"])
def test_the_settings_of_reading_hold_in_every_verb_that_reads(tmp_path, verb):
    """The settings are the field of a row's text and the longest text; without them nothing here is a document."""
    rows = [json.dumps({"id": f"r{n}", "body_text": text}) for n, text in enumerate([*GOOD, "x" * 3000])]
    for name in ("in", "target"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows[: len(GOOD) + (verb == "read")]))
    places = [tmp_path / "in.jsonl", tmp_path / "target.jsonl", tmp_path / "out"]
    if verb in ("train", "score"):
        (tmp_path / "model").mkdir()
        positives, negatives = GOOD, BAD
        train(positives, negatives, ClassifierConfig(), seed=1)[0].save(tmp_path / "model" / "classifier.npz")
    words = {
        "read": ("step", "read", places[0], places[2]),
        "dedup": ("step", "dedup", places[0], places[2], "--by", "text"),
        "select": ("step", "select", places[0], places[2], "--target", places[1]),
        "train": ("step", "train-classifier", places[0], places[2], "--crawl", places[1]),
        "score": ("step", "score", places[0], places[2], "--model", tmp_path / "model" / "classifier.npz"),
    }[verb]
    call(*words, "--set", "harvest.read.text=[body_text]", "--set", "harvest.read.longest_bytes=2500")
    if verb == "read":
        (funnel,) = json.loads((tmp_path / "out" / "funnel.json").read_text())
        assert (funnel["documents"], funnel["quarantined"]) == (len(GOOD), 1)
    if verb != "train":
        assert {d.text for d in read_documents(tmp_path / "out" / "documents")} <= {*GOOD}
    assert read_stamp(tmp_path / "out")["config"]["harvest"]["read"]["longest_bytes"] == 2500


def test_a_folder_that_trivium_did_not_make_is_never_written_over(stores):
    with pytest.raises(ConfigError, match="was not made by trivium"):
        call("step", "read", stores / "good", stores / "bad")
    assert len(list(read_documents(stores / "bad"))) == 60
    call("step", "read", stores / "good", stores / "out")
    call("step", "read", stores / "bad", stores / "out")  # its own output it may replace
    assert {d.source for d in read_documents(stores / "out" / "documents")} == {"bad"}


def test_the_output_of_any_other_verb_is_never_replaced(stores):
    with publishing(stores / "training", verb="train", config={}, inputs={}) as folder:
        (folder / "weights").write_text("dear")
    with pytest.raises(ConfigError, match="was made by `trivium train`"):
        call("step", "read", stores / "good", stores / "training")
    assert (stores / "training" / "weights").read_text() == "dear"


@pytest.mark.parametrize(
    ("words", "law"),
    [
        ("step read in in/out", "OUT .* lies in IN .* read as text"),
        ("step read out out", "IN .* lies in OUT"),
        ("step dedup in in/deeper/out --by text", "OUT .* lies in IN"),
        ("step select good in/out --target in", "OUT .* lies in --target"),
        ("step select good in/out --target bad --from in", "OUT .* lies in --from"),
        ("step read out/documents out", "IN .* lies in OUT .* replaced"),
        ("step dedup in out --index out/index", "--index .* lies in OUT .* replaced"),
        ("step dedup in out --index out", "--index .* lies in OUT"),
        ("step dedup in other --index in/index", "--index .* lies in IN"),
    ],
)
def test_what_is_written_is_neither_read_the_next_time_nor_deleted(stores, monkeypatch, words, law):
    monkeypatch.chdir(stores)
    (stores / "in").mkdir()
    (stores / "in" / "a.txt").write_text(GOOD[0])
    call("step", "read", "in", "out")
    before = sorted(stores.rglob("*"))
    with pytest.raises(ConfigError, match=law):
        call(*words.split())
    assert sorted(stores.rglob("*")) == before
    call("step", "read", "in", "in/.out")  # what is hidden is not read
    call("step", "dedup", "in", "out", "--index", ".out.index")


@pytest.mark.parametrize("words", [("dedup", "--by", "text"), ("extract",), ("read",)], ids=lambda words: words[0])
def test_name_of_a_step_is_a_command(stores, words):
    name, *options = words
    short = call(name, stores / "good", stores / "short", *options)
    assert short == call("step", name, stores / "good", stores / "long", *options)
    assert read_stamp(stores / "short")["verb"] == read_stamp(stores / "long")["verb"]


def test_dry_run_of_a_harvest_has_at_most_40_lines(tmp_path):
    for n in range(60):
        (tmp_path / "mine" / f"source{n}").mkdir(parents=True)
        (tmp_path / "mine" / f"source{n}" / "a.txt").write_text("12345")
    said = call("harvest", "--corpus", tmp_path / "mine", "--out", tmp_path / "run", "--dry-run").splitlines()
    assert len(said) <= 40 and said[-1] == "  and 30 sources more, with 30 files of 150 B"


def test_what_would_be_harvested_is_told_and_nothing_is_written(tmp_path):
    for name in ("books/a.txt", "books/b.txt", "c.txt", "train-00000-of-00002.jsonl", "d.pdf"):
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text("12345")
    said = call("harvest", "--corpus", tmp_path / "mine", "--out", tmp_path / "run", "--dry-run").splitlines()
    assert said[0] == "harvest: to be done"
    assert [line.split()[:2] for line in said[2:5]] == [["books", "2"], ["mine", "1"], ["train", "1"]]
    assert said[5].endswith(": 1 .pdf") and not (tmp_path / "run").exists()


def test_later_pieces_of_long_texts_are_counted_among_all_documents(tmp_path):
    said = [
        f"In the morning of day {n} the old captain and his men walked slowly to the river. " * 20 for n in range(50)
    ]
    (tmp_path / "long.txt").write_text("\n\n".join(said))
    told = call("harvest", "--corpus", tmp_path / "long.txt", "--out", tmp_path / "run")
    (entry,) = json.loads((tmp_path / "run" / "harvest" / "sources.json").read_text())
    assert re.search(r"([1-9]\d*) documents held out", told)
    assert f"cut: {entry['added']} of the {entry['documents']} documents, held-out ones included" in told
    assert entry["added"] == entry["documents"] - 1


def test_dropped_documents_are_shown_by_step_and_reason(stores):
    call("step", "quality", stores / "bad", stores / "run" / "curated")
    said = call("show", "--rejects", "--out", stores / "run", "--step", "quality", "--count", 3, "--characters", 20)
    lines = said.splitlines()
    assert len(lines) == 6 and all(" of bad: dropped by 'quality': " in line for line in lines[::2])
    assert lines[1].startswith("  click here ") and lines[1].endswith(" …")
    rows = [json.loads(line) for line in call("show", "--rejects", "--out", stores / "run", "--json").splitlines()]
    assert len(rows) == 10 and len({row["id"] for row in rows}) == 10
    with pytest.raises(DataError, match="no reject of .* has --reason 'too long'; "):
        call("show", "--rejects", "--out", stores / "run", "--reason", "too long")
    with pytest.raises(ConfigError, match="--characters 20: --json has each text whole"):
        call("show", "--rejects", "--out", stores / "run", "--json", "--characters", 20)


def test_a_corpus_without_rejects_is_no_error(stores):
    call("step", "read", stores / "good", stores / "run" / "curated")
    said = call("show", "--rejects", "--out", stores / "run")
    assert said == f"{stores / 'run' / 'curated'} has no rejects: every document was kept\n"


def test_the_texts_of_benchmarks_are_written_for_decontamination(tmp_path):
    rows = [{"goal": f"ho\u0301w do I mend chair {n % 2}", "sol1": "a", "sol2": "b", "label": 0} for n in range(3)]
    (tmp_path / "data" / "piqa").mkdir(parents=True)
    (tmp_path / "data" / "piqa" / "validation.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    said = call("against", "mt-nlg", tmp_path / "out" / "bench.jsonl", "--data", tmp_path / "data")
    assert "piqa: 2 texts, 2 of them with fewer words than are looked for" in said and "boolq: left out" in said
    found = [document.text for document in documents_at(Input(tmp_path / "out" / "bench.jsonl"))]
    assert found == ["hów do I mend chair 0", "hów do I mend chair 1"]


def test_snapshots_are_deduplicated_against_an_index(stores):
    first = call("step", "dedup", stores / "good", stores / "one", "--index", stores / "index")
    again = call("step", "dedup", stores / "one", stores / "two", "--index", stores / "index")
    assert "duplicates by near" in first and "near duplicate of an earlier snapshot" in again
    assert not list(read_documents(stores / "two" / "documents"))
    call("step", "dedup", stores / "good", stores / "three", "--by", "text")
    with pytest.raises(ConfigError, match=r"--index .* --by near"):
        call("step", "dedup", stores / "good", stores / "x", "--by", "lines", "--index", stores / "index")
    with pytest.raises(ConfigError, match="did you mean 'lines'"):
        call("step", "dedup", stores / "good", stores / "x", "--by", "line")
    with pytest.raises(ConfigError, match="curate.dedup.urls=true: .* `trivium corpus curate` alone"):
        call("step", "dedup", stores / "good", stores / "x", "--set", "curate.dedup.urls=true")


def test_a_snapshot_read_by_other_fields_is_another_one(stores):
    """One that forgot the field of the text does not stand in the index for that which names it."""
    for name in ("s1", "s2"):
        rows = [{"text": f"Headline {name} {n}", "body_text": text} for n, text in enumerate(GOOD[:20])]
        (stores / name).mkdir()
        (stores / name / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    index = ("--index", stores / "index")
    field, whole = ("--set", "harvest.read.text=[body_text]"), ("--set", "curate.dedup.threshold=1.0")
    kept = {}
    for out, source, *sets in (
        ("forgot", "s1"),
        ("one", "s1", *field),
        ("again", "s1", *field),
        ("two", "s2", *field),
        ("store", "good"),
        ("store again", "good", *field),  # of a store nothing is chosen by fields
    ):
        call("step", "dedup", stores / source, stores / out, *index, *whole, *sets)
        kept[out] = len(list(read_documents(stores / out / "documents")))
    assert kept == {"forgot": 20, "one": 20, "again": 20, "two": 0, "store": 40, "store again": 40}


def test_files_that_number_their_rows_alike_are_told_apart_when_they_are_deduplicated(tmp_path):
    for name, texts in (("a", GOOD), ("b", BAD)):
        rows = [json.dumps({"id": n, "text": text}) for n, text in enumerate(texts)]
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "x.jsonl").write_text("\n".join([*rows[:10], *rows[:1]]))
    for way in ("near", "text"):
        call("step", "dedup", tmp_path / "in", tmp_path / way, "--by", way, "--set", "curate.dedup.threshold=1.0")
        kept = [d.id for d in read_documents(tmp_path / way / "documents")]
        assert len(set(kept)) == len(kept) == 20 and {"7", "7~2"} <= set(kept)
        with gzip.open(tmp_path / way / "rejects.jsonl.gz", "rt") as file:
            assert [json.loads(line)["id"] for line in file] == ["0~2", "0~4"]


def test_a_classifier_is_trained_reported_and_used(stores):
    said = call("step", "train-classifier", stores / "good", stores / "model", "--crawl", stores / "bad")
    report = json.loads((stores / "model" / "report.json").read_text())
    assert report["accuracy"] == 1.0 and report["held_out"] == 12
    assert "accuracy 100.0%" in said and "12 documents held out" in said
    model = stores / "model"
    assert f"curate.classifier.model={model}\n" in said
    call("step", "score", stores / "bad", stores / "scored", "--model", model)
    call("step", "score", stores / "bad", stores / "again", "--model", model / "classifier.npz")
    assert not differences_between(stores / "scored", stores / "again")
    with pytest.raises(DataError, match="good is no quality classifier: .*`trivium corpus step train-classifier`"):
        call("step", "score", stores / "bad", stores / "again", "--model", stores / "good")
    scores = [d.metadata["classifier_score"] for d in read_documents(stores / "scored" / "documents")]
    assert len(scores) == 60 and max(scores) < 0.5
    settings = ("--set", f"curate.classifier.model={model}", "--set", "curate.classifier.threshold=0.5")
    call("step", "classifier", stores / "bad", stores / "none", *settings)
    assert not list(read_documents(stores / "none" / "documents"))
    in_use = CurateConfig(filters=("classifier",), classifier=ClassifierConfig(model=str(model)))
    assert files_beside(in_use) == [model / "classifier.npz"]  # another model in the folder is another input


def written(root, **texts):
    """Write a store of documents for each name."""
    for name, some in texts.items():
        write_documents(root / name, [Document(f"{name}{n}", text, name) for n, text in enumerate(some)])


def chosen_in(folder):
    return [d.text for d in read_documents(folder / "documents")]


def test_selection_takes_what_the_target_has_and_the_pool_lacks_best_first(stores):
    written(stores, pool=[*BAD, *GOOD[:20]], wanted=GOOD[20:])
    for method in ("transport", "importance"):
        sets = ("--set", f"curate.selection.method={method}", "--set", "curate.selection.fraction=0.25")
        said = call("step", "select", stores / "pool", stores / method, "--target", stores / "wanted", *sets)
        assert "median characters: candidates " in said and "not among the chosen share" in said
        assert "% of the text" not in said  # most of the text is dropped on purpose
        chosen = list(read_documents(stores / method / "documents"))
        assert [d.metadata["selection"]["rank"] for d in chosen] == list(range(20))
        assert {d.text for d in chosen} == {*GOOD[:20]}


def test_selection_takes_what_a_run_was_not_trained_on(stores):
    """The pool has as much of both kinds as the target, and the run was trained on one of them."""
    written(stores, pool=[*BAD[:20], *GOOD[:20]], wanted=[*BAD[20:40], *GOOD[20:40]], run=GOOD[40:])
    (stores / "trained" / "curated").mkdir(parents=True)
    (stores / "run").rename(stores / "trained" / "curated" / "documents")
    asked = ("--target", stores / "wanted", "--set", "curate.selection.fraction=0.5")
    call("step", "select", stores / "pool", stores / "out", *asked, "--from", stores / "trained")
    assert {*chosen_in(stores / "out")} == {*BAD[:20]}


def test_selection_takes_vectors_of_a_file(stores):
    """The words say one thing and the vectors another."""
    written(stores, pool=[*BAD[:20], *GOOD[:20]], wanted=GOOD[20:40])
    bad, good = [1.0, 0.0, 0.2], [0.0, 1.0, 0.2]
    np.save(stores / "vectors.npy", np.array([good] * 5 + [bad] * 35 + [good] * 20))
    asked = ("--target", stores / "wanted", "--set", "curate.selection.fraction=0.125")
    call("step", "select", stores / "pool", stores / "out", *asked, "--embedding", stores / "vectors.npy")
    assert {*chosen_in(stores / "out")} == {*BAD[:5]}
    with pytest.raises(DataError, match=r"has 60 rows, and there are 40 \+ 20 \+ 60 documents"):
        call(
            *("step", "select", stores / "pool", stores / "again", *asked, "--from", stores / "good"),
            *("--embedding", stores / "vectors.npy"),
        )
    assert not (stores / "again").exists()


@pytest.mark.broad
def test_selection_takes_the_hidden_states_of_a_model(stores):
    (stores / "model").mkdir()
    write_checkpoint(stores / "model", plan_of("llama"))
    written(stores, pool=[*BAD, *GOOD[:20]], wanted=GOOD[20:])
    asked = ("--target", stores / "wanted", "--set", "curate.selection.fraction=0.25")
    call("step", "select", stores / "pool", stores / "out", *asked, "--embedding", stores / "model" / "checkpoints")
    assert {*chosen_in(stores / "out")} == {*GOOD[:20]}
    with pytest.raises(DataError, match="nothing does not exist; give a run, a checkpoint"):
        call("step", "select", stores / "pool", stores / "again", *asked, "--embedding", stores / "nothing")


def test_the_papers_blend_is_shown_after_any_number_of_tokens():
    lines = call("show", "--blend", "mt-nlg").splitlines()
    assert len(lines) == 17 and lines[0].startswith("source")
    found = json.loads(call("show", "--blend", "mt-nlg", "--after", "27B", "--json"))
    whole = json.loads(call("show", "--blend", "mt-nlg", "--after", "270B", "--json"))
    assert len(found) == 15
    assert abs(sum(one["tokens"] for one in found.values()) - 27e9) < 4096
    for source, one in whole.items():
        assert one["epochs"] == pytest.approx(10 * found[source]["epochs"], rel=1e-2)


def test_the_blend_of_a_run_is_that_of_its_tokens(tmp_path):
    source = curated(tmp_path / "curated", documents({"prose": 40, "pages": 20}), {"prose": 3, "pages": 1})
    (tmp_path / "tokens").mkdir()
    manifest = tokenize(TokensConfig(vocabulary=400), source, tmp_path / "tokens", seed=1)
    found = json.loads(call("show", "--blend", tmp_path, "--after", "64K", "--sequence", "64", "--json"))
    assert found["prose"]["samples"] == 3 * found["pages"]["samples"] == 750
    tokens = manifest["sources"]["prose"]["train"]["tokens"]
    assert found["prose"]["epochs"] == pytest.approx(750 * 64 / tokens)
    (tmp_path / "harvested").mkdir()
    with pytest.raises(ConfigError, match=r"without .*tokens/manifest.json.*`trivium tokenize --out .*harvested`"):
        call("show", "--blend", tmp_path / "harvested")
    with pytest.raises(ConfigError, match="1 token or more"):
        call("show", "--blend", "mt-nlg", "--sequence", "0")


@pytest.mark.parametrize(
    ("words", "law"),
    [
        ("step quality good out --by text", "--by: `trivium corpus step quality` does not read this"),
        ("step dedup good out --engine native", "--engine: `trivium corpus step dedup` does not read this"),
        ("step select good out", "--target is missing: `trivium corpus step select` needs it"),
        (
            "step select good out --target bad --from good --set curate.selection.method=importance",
            "--from: curate.selection.method=importance does not read this",
        ),
        ("step score good out --crawl bad", "--crawl: `trivium corpus step score` does not read this"),
        ("show --count 3", "--count: only --rejects reads this"),
        ("show good0 --after 1B", "--after: only --blend reads this"),
        ("show good0 --rejects", "ID and --rejects: each shows something else"),
    ],
)
def test_an_option_that_would_not_count_is_refused(stores, monkeypatch, words, law):
    monkeypatch.chdir(stores)
    with pytest.raises(ConfigError, match=law):
        call(*words.split())
    assert not (stores / "out").exists()


def test_extraction_is_checked_where_the_report_finds_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "gold" / "pages").mkdir(parents=True)
    page = f"<html><body><article><p>{GOOD[0]}</p><p>{GOOD[1]}</p></article></body></html>"
    (tmp_path / "gold" / "pages" / "p.html.gz").write_bytes(gzip.compress(page.encode()))
    (tmp_path / "gold" / "ground-truth.json").write_text(json.dumps({"p": {"articleBody": GOOD[0] + GOOD[1]}}))
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    words = [str(tmp_path / "gold"), "--rounds", "1", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["extraction.py", *words])
    import_module("extraction").main()
    rows = json.loads((tmp_path / "run" / "extraction.json").read_text())
    assert rows["blocks (default)"]["word_f1"] > 0.9
    assert "blocks (default)" in capsys.readouterr().out
