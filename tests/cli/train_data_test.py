"""`trivium train --data`: everything that is missing before the training is done first, and too little is refused."""

import json
import random
import shutil
from pathlib import Path

import pytest

from trivium.cli import train, train_data
from trivium.cli.options import check_filters, given_for, open_run, with_curation
from trivium.cli.tokenize import check_batch
from trivium.errors import ConfigError, DataError

SMALL = [
    "plan.batch.sequences=4",
    "plan.batch.ramp=null",
    "plan.batch.micro=4",
    "plan.model.layers=2",
    "plan.model.hidden=32",
    "plan.model.sequence=32",
    "plan.model.vocabulary=300",
    "training.steps=2",
]
SETS = ["--ranks", "1", *(word for one in SMALL for word in ("--set", one))]


@pytest.fixture
def text(tmp_path):
    generator, words = random.Random(1), "the river boats went down a long way to towns where people sold bread".split()
    rows = [" ".join(generator.choice(words) for _ in range(200)) + "." for _ in range(40)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return "docs.jsonl"


@pytest.fixture
def done(monkeypatch):
    """The names of the stages that are performed, none of which works."""
    names = []
    for module in (train, train_data):
        monkeypatch.setattr(module, "perform", lambda stage, run, **_: names.append(stage.name))
    monkeypatch.setattr(train_data, "adopt_into", lambda out, given, pairs, **_: names.append(pairs))
    monkeypatch.setattr(train_data, "large_losses", lambda run: [])
    return names


def test_raw_text_goes_through_every_stage_in_order(call, done, text):
    ended = call("train", "--data", text, "--out", "run", *SETS)
    assert ended.returncode == 0, ended.stderr
    assert done == ["harvest", "curate", "tokenize", "train"]


def test_pairs_are_adopted_and_tokens_used_as_they_are(call, done, tmp_path):
    (tmp_path / "pairs").mkdir()
    for name in ("a.bin", "a.idx", "b.bin", "b.idx", "c.idx"):
        (tmp_path / "pairs" / name).touch()
    for data, pairs in (("pairs", ["pairs/a", "pairs/b"]), ("pairs/b", ["pairs/b"]), ("pairs/a.bin", ["pairs/a"])):
        done.clear()
        assert call("train", "--data", data, "--out", "run", *SETS).returncode == 0
        assert done == [pairs, "train"]
    (tmp_path / "other" / "tokens").mkdir(parents=True)
    (tmp_path / "other" / "tokens" / "manifest.json").touch()
    done.clear()
    assert (
        train_data.tokens_at("other")
        == train_data.tokens_at("other/tokens/")
        == (tmp_path / "other/tokens").relative_to(tmp_path)
    )
    assert train_data.tokens_at("pairs") is None


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_text_smaller_than_a_batch_is_refused_before_any_work(call, tmp_path, words):
    (tmp_path / "mine.txt").write_text("Too little. " * 5)
    ended = call("train", "--data", "mine.txt", "--out", "run", *SETS, *words)
    assert ended.returncode == 4
    assert "at most a token for a byte, has 68 tokens for training, fewer than one batch" in ended.stderr
    assert "4 x 32 = 128; give more text, or --set plan.batch.sequences=2 or less" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_empty_files_are_called_empty(call, tmp_path):
    (tmp_path / "empty.txt").touch()
    ended = call("train", "--data", "empty.txt", "--out", "run", *SETS)
    assert ended.returncode == 4 and "--data empty.txt has no text: 1 empty file; " in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_tokens_that_cannot_fill_a_batch_are_refused(tmp_path):
    config = open_run(tmp_path, given_for(tmp_path, "demo", SMALL, 1)).config
    check_batch(config, 128, "tokens")
    with pytest.raises(DataError, match="tokens has 127 tokens for training, fewer than one batch"):
        check_batch(config, 127, "tokens")


@pytest.mark.parametrize(
    "words, told",
    [
        (("--tokens", "elsewhere"), "--tokens: --data names what is trained on"),
        (("--set", "curate.quality.words_low=3", "--no-curation"), "curate.quality.words_low: curate.keep_all is true"),
        (("--set", "harvest.max_bytes=9"), "belongs to the default corpus"),
    ],
)
def test_options_that_contradict_the_data_are_refused(call, text, tmp_path, words, told):
    ended = call("train", "--data", text, "--out", "run", *SETS, *words)
    assert ended.returncode == 2 and told in ended.stderr
    assert not (tmp_path / "run").exists()


def test_settings_of_curation_need_data(call):
    assert "--no-curation: name the raw text with --data" in call("train", "--no-curation", "--out", "run").stderr


def test_several_processes_do_not_prepare_the_same_data(call, text, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    ended = call("train", "--data", text, "--out", "run", *SETS)
    assert ended.returncode == 2
    assert "`trivium corpus run demo --data docs.jsonl --out run` before the job" in ended.stderr


def test_no_curation_keeps_what_may_stay_in_effect():
    sets = with_curation(["curate.document_seconds=9", "training.lr=0.1"], False)
    assert sets[2:] == ["curate.keep_all=true", "harvest.cut_rows=false"]
    config = open_run(Path("run"), given_for(Path("run"), "demo", sets)).config
    check_filters(sets, config.curate)
    with pytest.raises(ConfigError, match=r"curate\.filters: curate\.keep_all is true"):
        check_filters(["curate.filters=[]"], config.curate)


@pytest.mark.broad
def test_a_run_that_stopped_goes_on_with_the_same_command(call, text, tmp_path, monkeypatch):
    command = ("train", "--data", text, "--out", "run", "--no-curation", *SETS)
    with monkeypatch.context() as patch:
        patch.setattr("trivium.corpus.pipeline.decide", lambda *_: (_ for _ in ()).throw(DataError("stopped")))
        ended = call(*command)
        assert ended.returncode == 4 and "harvest: done" in ended.stdout
    ended = call(*command)
    assert ended.returncode == 0, ended.stderr
    assert "harvest: up to date" in ended.stdout and "train: done" in ended.stdout
    kept = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    (tmp_path / "other.jsonl").write_text((tmp_path / text).read_text() * 2)
    other = ("train", "--data", "other.jsonl", *command[3:])
    refused = call(*other)
    assert refused.returncode == call(*other, "--dry-run").returncode == 2
    assert (
        "run/harvest would be replaced, but the training in run/training (2 steps) was made from it" in refused.stderr
    )
    assert all(path.read_bytes() == data for path, data in kept.items())
    assert "up to date in run/training" in call("train", "--out", "run").stdout, "the remedy that the refusal names"
    ended = call(*other, "--redo")
    assert ended.returncode == 0 and "run/training is now in run/training.previous" in ended.stdout, ended.stderr
    shutil.rmtree(tmp_path / "run" / "training")
    ended = call("train", "--data", "run", "--out", "second", "--ranks", "1", "--preset", "run")
    assert ended.returncode == 0, ended.stderr
    assert "train: done" in ended.stdout and not (tmp_path / "second" / "harvest").exists()


def test_an_empty_path_is_not_this_folder(call, text):
    for words in (("--data", ""), ("--data", text, "--out", "")):
        ended = call("train", *words, *SETS, "--dry-run")
        assert ended.returncode == 2 and "is empty; give a file or folder" in ended.stderr


def test_a_dry_run_shows_settings_of_the_training_first_and_reads_the_number_of_hosts(call, text):
    told = call("train", "--data", text, "--out", "run", *SETS, "--dry-run").stdout
    assert told.splitlines()[1].startswith("  training ") and "steps=2" in told.splitlines()[1]
    refused = call("train", "--data", text, "--out", "run", *SETS, "--hosts", "banana", "--dry-run")
    assert refused.returncode == 2 and "--hosts banana: must be MIN:MAX" in refused.stderr
