"""`trivium corpus curate --keep-work`: what is kept is reported, predicted, used and deleted."""

import json
from pydoc_data.topics import topics

import pytest
from typer.testing import CliRunner

from trivium.cli import corpus

pytestmark = pytest.mark.usefixtures("kernels")
SENTENCE = "The {} of the house was seen by all that have come to the village with {} friends in the year {}. "


@pytest.fixture
def out(tmp_path):
    text = tmp_path / "text.jsonl"
    pages = [page for _, page in sorted(topics.items()) if len(page) > 1500][:20]
    flowing = ("\n\n".join(" ".join(part.split()) for part in page.split("\n\n")) for page in pages)
    text.write_text("".join(json.dumps({"text": page}) + "\n" for page in flowing))
    said("harvest", "--out", tmp_path / "run", "--corpus", text, "--set", "harvest.evaluation_items=1")
    return tmp_path / "run"


def said(*words):
    ended = CliRunner().invoke(corpus.app, list(map(str, words)))
    assert ended.exit_code == 0, ended.output + repr(ended.exception)
    return ended.output


def test_of_a_finished_curation_it_is_told_that_nothing_is_kept_and_what_keeps_it(out):
    said("curate", "--out", out)
    for words in ((), ("--dry-run",)):
        told = said("curate", "--out", out, "--keep-work", *words)
        assert "up to date" in told and "nothing of it is kept yet" in told
        assert f"`trivium corpus curate --out {out} --redo --keep-work`" in told
        assert not (out / corpus.KEPT).exists()
    assert "nothing of it is kept" not in said("curate", "--out", out)
    assert "nothing of it is kept" not in said("curate", "--out", out, "--redo", "--keep-work")
    assert (out / corpus.KEPT).is_dir()
    assert "nothing of it is kept" not in said("curate", "--out", out, "--keep-work")


def test_kept_work_is_foretold_used_told_and_deleted(out):
    stricter = ("--set", "curate.quality.words_low=60")
    assert "--keep-work keeps it" in said("curate", "--out", out, "--dry-run")
    assert not (out / "curated").exists()
    assert "kept for the next curation: " in said("curate", "--out", out, "--keep-work")
    again = "used again: the filtered documents of 0 of 1 raw files;"
    foretold = said("curate", "--out", out, *stricter, "--dry-run")
    assert "curate.quality.words_low: 50 -> 60\n" in foretold and again in foretold
    assert again in said("curate", "--out", out, *stricter)
    assert "up to date" in said("curate", "--out", out, "--dry-run")
    said("curate", "--out", out, "--no-keep-work")
    assert not (out / corpus.KEPT).exists()
    assert "nothing is kept" in said("curate", "--out", out, "--redo", "--dry-run")


def test_work_is_kept_for_a_relative_out(out, monkeypatch):
    monkeypatch.chdir(out.parent)
    assert "kept for the next curation: 0 B" not in said("curate", "--out", out.name, "--keep-work")
    used = "used again: the filtered documents of 1 of 1 raw files;"
    assert used in said("curate", "--out", out.name, "--set", "curate.dedup.threshold=0.7")
