"""Lineage from any token to its document and back, for every step, and the hash of what the trainer really read."""

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plans import small
from tokens.curated import curated, documents
from trivium.cli import main as entry
from trivium.errors import DataError
from trivium.provenance import STAMP
from trivium.tokens.blend import Blend
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize
from trivium.tokens.left_out import SKIPPED, LeftOut
from trivium.tokens.lineage import Found
from trivium.tokens.manifest import never_read, open_shards, read_tokens_manifest
from trivium.tokens.rows import Rows, digest
from trivium.tokens.samples import Sighting, TokenDataset
from trivium.training.config import TrainingConfig
from trivium.training.lineage import trace as lineage
from trivium.training.loop import TrainingJob
from trivium.training.metrics import METRICS, read
from trivium.training.record import Record, read_record
from trivium.training.supervision.job import start

STEPS = 12
WEIGHTS = {"prose": 0.5, "pages": 0.375, "tiny": 0.125}
BATCH = {"sequences": 8, "micro": 2, "ramp": {"start": 4, "increment": 4, "samples": 12}}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("lineage")
    docs = documents({"prose": 12, "pages": 4}, words=30) + documents({"tiny": 1}, words=2)
    curated(root / "curated", docs, WEIGHTS)
    gzip.open(root / "curated" / "rejects.jsonl.gz", "wt").close()
    (root / "tokens").mkdir()
    tokenize(TokensConfig(vocabulary=300, validation_fraction=0.1), root / "curated", root / "tokens", seed=3)
    given = small(data=2, model={"vocabulary": 300, "layers": 2}, batch=BATCH)
    training = TrainingConfig(steps=STEPS, validation_samples=4, checkpoint_every=6)
    start(TrainingJob(given, training, 5, root / "tokens", root / "training"))
    return root


@pytest.fixture
def record(run: Path) -> Record:
    return read_record(run / "training")


def test_blend_places_the_nth_sample_of_a_source_where_it_occurs() -> None:
    blend = Blend({"a": 0.7, "b": 0.2, "c": 0.1})
    n = np.arange(3 * blend.period)
    source, ordinal = blend.source(n), blend.ordinal(n)
    for number in range(3):
        mine = source == number
        assert blend.place(number, ordinal[mine]).tolist() == n[mine].tolist()


def test_numbers_of_samples_count_places_that_are_not_skipped() -> None:
    left = LeftOut([(7, 9), (3, 5), (5, 6), (20, 20)])
    assert left.gaps == ((3, 6), (7, 9))
    there = [p for p in range(20) if p not in (3, 4, 5, 7, 8)]
    assert left.places(np.arange(len(there))).tolist() == there
    assert left.numbers(np.arange(20)).tolist() == [there.index(p) if p in there else SKIPPED for p in range(20)]
    more = left.without(2, 5)  # places 2, 6 and 9
    assert more.gaps == ((2, 10),)
    assert left.before(3) == () and left.before(4) == ((3, 6),) and left.before(5) == left.gaps


def test_counts_by_source_stay_exact_when_samples_are_skipped(run: Path) -> None:
    data = TokenDataset.open(run / "tokens", "train", sequence=8, seed=5)
    data = data.leaving_out(LeftOut([(3, 9), (20, 21)]))
    counts = dict.fromkeys(WEIGHTS, 0)
    for i in range(60):
        assert data.counts_after(i) == counts
        counts[data.where(i).source] += 1


def test_digest_depends_on_every_token_target_and_weight_and_not_on_the_split_over_ranks() -> None:
    text, weights = np.arange(24).reshape(4, 6), np.ones((4, 6), np.float32)
    other_text, other_weights = text.copy(), weights.copy()
    other_text[2, 3] += 1
    other_weights[1, 2] = 0
    weighted = Rows.of_text(text, other_weights)
    for rows in (Rows.of_text(text), weighted):
        parts = [digest(range(a, a + 2), rows.part(a, a + 2)) for a in (2, 0)]
        assert digest(range(4), rows) == tuple(map(sum, zip(*parts, strict=True)))
    rows = Rows.of_text(text, weights)
    right = digest(range(4), rows)
    assert right == digest(range(4), Rows.of_text(text))
    for changed in (
        digest(range(4), Rows.of_text(other_text)),
        digest(range(4), rows._replace(targets=rows.targets + 1)),
        digest(range(4), weighted),
        digest(range(1, 5), rows),
        digest(range(4), Rows.of_text(text[[1, 0, 2, 3]])),
    ):
        assert str(changed) != str(right)


@pytest.mark.broad
def test_every_token_of_every_step_is_traced_to_its_document_and_back(record: Record, run: Path) -> None:
    shards = open_shards(run / "tokens", "train")
    seen = {}
    for step in range(1, STEPS + 1):
        sequences = record.plan.batch.at(step - 1).sequences
        for row in range(sequences):
            for position in range(record.plan.model.sequence + 1):
                found = lineage.trace(record, step, row, position)
                (place,) = (p for p in record.data.find(found["document"]))
                assert shards[found["source"]].tokens[place.start + found["offset"]] == found["token"]
                seen.setdefault(found["document"], set()).add((step, row, position, found["offset"]))
    backward = {
        found.document: {
            (s["step"], s["row"], s["offset"] + k, s["begin"] + k)
            for piece in lineage.where(record, found.document)["pieces"]
            for s in piece["seen"]
            for k in range(s["length"])
        }
        for found in record.data.documents()
    }
    assert {name: places for name, places in backward.items() if places} == seen
    assert len(seen) > 10
    assert max(lineage.trace(record, STEPS, r, 0)["epoch"] for r in range(8)) > 0, "no epoch was finished"
    found = lineage.round_trip(record)
    assert found["agrees"] and found["steps"] == STEPS and found["sightings"] > 0


def test_sightings_that_only_one_direction_finds_are_counted(record: Record, monkeypatch) -> None:
    right = lineage.round_trip(record)
    assert right["only_forward"] == right["only_backward"] == 0
    sightings = TokenDataset.sightings
    changed: list[Sighting] = []

    def wrong(data: TokenDataset, found: Found, samples: int) -> list[Sighting]:
        seen = sightings(data, found, samples)
        if len(changed) < 3 and seen:
            moved = {0: {"begin": seen[0].begin + 1}, 1: {"epoch": seen[0].epoch + 1}, 2: None}[len(changed)]
            changed.append(seen[0])
            return [*seen[1:], *([seen[0]._replace(**moved)] if moved else [])]
        return seen

    monkeypatch.setattr(TokenDataset, "sightings", wrong)
    found = lineage.round_trip(record)
    assert (found["only_forward"], found["only_backward"], found["agrees"]) == (3, 2, False)
    assert found["sightings"] == right["sightings"] and found["documents"] == right["documents"]


Lines = list[dict[str, Any]]
LINES: dict[str, tuple[Callable[[Lines], Lines], bool, str]] = {
    "twice": (lambda lines: [*lines[:2], *lines[1:]], False, "has step 2 twice"),
    "none": (lambda lines: [], False, "has no step"),
    "first missing": (lambda lines: lines[1:], False, "does not have step 1"),
    "middle missing": (lambda lines: [lines[0], *lines[2:]], False, "does not have step 2"),
    "last missing": (lambda lines: lines[:-1], True, f"does not have step {STEPS}"),
}
for field, value in {"batch_hash": 7, "sequences": [], "step": "x"}.items():
    change = lambda lines, new={field: value}: [*lines[:-1], lines[-1] | new]  # noqa: E731
    LINES[f"damaged {field}"] = (change, True, f"does not have step {STEPS}")


@pytest.mark.parametrize("case", LINES)
def test_missing_repeated_or_damaged_steps_do_not_pass_the_check(record: Record, tmp_path: Path, case: str) -> None:
    change, ended, says = LINES[case]
    lines = change(list(record.logged()))
    (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if ended:
        (tmp_path / STAMP).write_text("{}")
    with pytest.raises(DataError, match=f"{METRICS} {says}"):
        lineage.round_trip(replace(record, folder=tmp_path))


def test_logged_hash_is_of_what_ranks_read_and_shows_one_changed_token(
    record: Record, tmp_path: Path, monkeypatch
) -> None:
    for step in range(1, STEPS + 1):
        assert lineage.batch(record, step)["agrees"] is True
    right = TokenDataset.rows

    def wrong(data, first: int, count: int):
        found = right(data, first, count)
        found.tokens[-1, -1] ^= int(data.split == "train" and first + count == 4)
        return found

    monkeypatch.setattr(TokenDataset, "rows", wrong)
    training = record.training.model_copy(update={"steps": 2})
    start(TrainingJob(record.plan, training, record.seed, record.tokens, tmp_path / "training"))
    monkeypatch.undo()
    other = read_record(tmp_path / "training")
    assert [lineage.batch(other, s)["agrees"] for s in (1, 2)] == [False, True]
    assert lineage.round_trip(other)["wrong_hashes"] == [1]


def test_ranks_that_share_a_sequence_hash_it_once(record: Record, tmp_path: Path) -> None:
    plan = small(context=2, model={"vocabulary": 300, "layers": 2}, batch=BATCH)
    training = record.training.model_copy(update={"steps": 2})
    start(TrainingJob(plan, training, record.seed, record.tokens, tmp_path))
    one, two = (
        [m["batch_hash"] for m in read(folder / METRICS) if "loss" in m] for folder in (tmp_path, record.folder)
    )
    assert one == two[:2]


def test_counts_after_a_step_are_those_of_its_batches(record: Record) -> None:
    total = dict.fromkeys(WEIGHTS, 0)
    for step in range(1, STEPS + 1):
        found = lineage.batch(record, step)
        for row in found["rows"]:
            total[row["source"]] += 1
        assert found["counts"] == lineage.counts(record, step) == total


def run_verb(monkeypatch, capsys, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["trivium", "data", *words])
    code = 0
    try:
        entry.main()
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_commands_print_what_the_functions_return(run: Path, record: Record, monkeypatch, capsys) -> None:
    code, out, _ = run_verb(monkeypatch, capsys, "show", str(run), "--step", "3", "--json")
    assert code == 0 and json.loads(out) == json.loads(json.dumps(lineage.batch(record, 3)))
    code, out, _ = run_verb(monkeypatch, capsys, "show", str(run), "--step", "3", "--row", "1")
    assert "as logged" in out and len(out.splitlines()) == 4
    step = ("--step", "3", "--row", "1", "--position", "4")
    code, out, _ = run_verb(monkeypatch, capsys, "show", str(run), *step, "--json")
    found = json.loads(out)
    assert found["curation"]["kept"][0]["id"] == found["document"]
    (first, stop), row = found["in_row"], record.data.sample(found["sample"]).tolist()
    assert first <= 4 < stop and found["tokens_in_row"] == row[first:stop] and found["token"] == row[4]
    assert found["text_in_row"].strip() in found["curation"]["kept"][0]["text"] + "<|endoftext|>"
    code, out, _ = run_verb(monkeypatch, capsys, "show", str(run), *step)
    assert found["document"] in out and "was kept" in out
    code, out, _ = run_verb(monkeypatch, capsys, "show", str(run), "--document", found["document"], "--json")
    seen = json.loads(out)["pieces"][0]["seen"]
    assert any((s["step"], s["row"]) == (3, 1) for s in seen)
    code, out, _ = run_verb(monkeypatch, capsys, "show", str(run), "--document", found["document"])
    assert len(out.splitlines()) == len(seen) + 2
    code, out, _ = run_verb(monkeypatch, capsys, "show", "--counts", str(run), "--step", "3", "--json")
    assert json.loads(out)["samples"] == lineage.counts(record, 3)
    manifest = read_tokens_manifest(record.tokens)
    never, tokens = json.loads(out)["never_read"], manifest["totals"]["train"]["tokens"]
    assert never == never_read(manifest, record.plan.model.sequence) and sum(never.values()) > 0
    code, out, _ = run_verb(monkeypatch, capsys, "show", "--counts", str(run), "--step", "3")
    assert f"never trained on: {sum(never.values()):,} of {tokens:,} tokens" in out
    code, out, _ = run_verb(monkeypatch, capsys, "show", "--check", str(run))
    assert code == 0 and "0 with another hash" in out


def test_counts_of_a_future_step_are_marked(run: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    shutil.copytree(run / "training", tmp_path / "training")
    first = read(tmp_path / "training" / METRICS)[:3]
    (tmp_path / "training" / METRICS).write_text("".join(json.dumps(m) + "\n" for m in first))
    code, out, _ = run_verb(monkeypatch, capsys, "show", "--counts", str(tmp_path), "--step", "5")
    assert code == 0 and "3 steps are done; this is what 5 will have taken" in out
    code, out, _ = run_verb(monkeypatch, capsys, "show", "--counts", str(tmp_path), "--step", "3")
    assert code == 0 and "done" not in out


def test_sources_of_weight_0_are_named(run: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    shutil.copytree(run / "tokens", tmp_path / "tokens")
    shutil.copytree(run / "training", tmp_path / "training")
    place = tmp_path / "tokens" / "manifest.json"
    manifest = json.loads(place.read_text())
    manifest["sources"]["pages"]["weight"] = 0.0
    place.write_text(json.dumps(manifest))
    there = (str(tmp_path), "--tokens", str(tmp_path / "tokens"))
    _, out, _ = run_verb(monkeypatch, capsys, "show", "--counts", *there, "--step", "3")
    assert "never trained on: " in out and "and all of weight 0 (curate.blend): pages" in out
    code, _, err = run_verb(monkeypatch, capsys, "show", *there, "--document", "pages-1")
    assert code == 4 and "is of a source of weight 0, or is none" in err


@pytest.fixture
def other_run(run: Path, tmp_path: Path) -> Path:
    """The same training beside another corpus and, under the same names, its tokens."""
    docs = documents({"prose": 12, "pages": 4}, words=31) + documents({"tiny": 1}, words=2)
    renamed = [replace(d, id=f"other-{d.id}") for d in docs]
    curated(tmp_path / "curated", renamed, WEIGHTS)
    gzip.open(tmp_path / "curated" / "rejects.jsonl.gz", "wt").close()
    (tmp_path / "tokens").mkdir()
    config = TokensConfig(vocabulary=300, validation_fraction=0.1)
    tokenize(config, tmp_path / "curated", tmp_path / "tokens", seed=3)
    shutil.copytree(run / "training", tmp_path / "training")
    return tmp_path


def test_tokens_of_another_training_are_an_error(run: Path, other_run: Path, monkeypatch, capsys) -> None:
    there = ("--tokens", str(other_run / "tokens"))
    at = ("--step", "3", "--row", "1", "--position", "4")
    name = next(iter(TokenDataset.open(other_run / "tokens", "train", sequence=8, seed=5).documents())).document
    for words in (
        ("show", str(other_run), *at, *there),
        ("show", str(other_run), "--document", name, *there),
        ("show", str(other_run), "--step", "3", *there),
        ("show", "--counts", str(other_run), "--step", "3", *there),
    ):
        code, out, err = run_verb(monkeypatch, capsys, *words)
        assert code == 4 and out and "this is not what it was trained on" in err, words


def test_curation_is_that_next_to_the_tokens(run: Path, other_run: Path, monkeypatch, capsys) -> None:
    at = ("show", str(other_run), "--step", "3", "--row", "1", "--position", "4", "--tokens")
    _, out, _ = run_verb(monkeypatch, capsys, *at, str(run / "tokens"), "--json")
    found = json.loads(out)
    assert found["curation"]["kept"][0]["id"] == found["document"]
    monkeypatch.chdir(run / "tokens")
    unknown = ("show", str(other_run), "--document", "nobody", "--tokens")
    _, _, err = run_verb(monkeypatch, capsys, *unknown, ".")
    assert f"corpus show nobody --out {run}`" in err
    # Tokens that were moved away, next to a corpus that was curated again.
    shutil.copytree(run / "tokens", other_run / "moved" / "tokens")
    code, out, _ = run_verb(monkeypatch, capsys, *at, str(other_run / "moved" / "tokens"))
    assert code == 0 and "is token" in out and "its curation is not known: no document of" in out
    shutil.rmtree(other_run / "curated")
    _, _, err = run_verb(monkeypatch, capsys, *unknown, str(other_run / "moved" / "tokens"))
    assert "no curation lies beside these tokens" in err


def test_missing_document_step_and_row_are_errors(run: Path, record: Record, monkeypatch, capsys) -> None:
    with pytest.raises(DataError, match="document 'nobody'"):
        lineage.where(record, "nobody")
    for words, said in (
        (("show", str(run), "--step", "13"), "steps 1 to 12"),
        (("show", str(run), "--step", "1", "--row", "77"), "--row 77 must be 0 to 3"),
        (("show", str(run), "--step", "1", "--row", "-1"), "--row -1 must be 0 to 3"),
        (("show", str(run), "--step", "1", "--row", "4", "--position", "0"), "--row 4 must be 0 to 3"),
        (("show", str(run / "tokens"), "--step", "1"), "no training began there"),
    ):
        code, _, err = run_verb(monkeypatch, capsys, *words)
        assert code == 4 and said in err


TRIVIUM = (sys.executable, "-m", "trivium.cli.main")
# The order of the samples knows of no width: a narrow model on one process reads what the demo's does.
NARROW = ("plan.model.layers=1", "plan.model.hidden=8", "plan.model.heads=1", "plan.layout.tensor=1",
          "plan.layout.pipeline=1", "plan.layout.data=1", "plan.layout.chunks=1", "plan.schedule=1f1b",
          "plan.zero=0", "training.validation_samples=8")  # fmt: skip


@pytest.mark.slow
def test_every_row_and_every_document_of_the_demo_are_traced_to_each_other(tmp_path) -> None:
    out = str(tmp_path / "run")
    subprocess.run([*TRIVIUM, "corpus", "run", "demo", "--out", out], check=True, capture_output=True)
    sets = [word for each in NARROW for word in ("--set", each)]
    subprocess.run([*TRIVIUM, "train", "--preset", "demo", "--out", out, *sets], check=True, capture_output=True)
    record = read_record(tmp_path / "run" / "training")
    found = lineage.round_trip(record)
    assert found["agrees"] and found["steps"] == record.training.steps == 200
    assert found["sightings"] > 10_000 and not found["wrong_hashes"]
