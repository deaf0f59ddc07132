"""Repositories of the Hub: the cache is asked first, and only what it lacks is downloaded."""

import pytest

from trivium.hub import hub_folder
from trivium.tokens.tokenizer import given_tokenizer, train_tokenizer

hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is an extra: pip install -e '.[remote]'")


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """The calls of snapshot_download, as (revision, only from the cache); each takes the next outcome."""
    made, outcomes = [], []

    def snapshot_download(repository, *, revision, local_files_only, **_):
        made.append((revision, local_files_only))
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    return made, outcomes


def test_a_cached_tokenizer_needs_no_network(calls, tmp_path):
    made, outcomes = calls
    train_tokenizer(["some words of a text"], 270).save(tmp_path / "tokenizer.json")
    outcomes.append(tmp_path)
    assert given_tokenizer("hf:org/name@v1").vocabulary == 270
    assert made == [("v1", True)]


def test_what_the_cache_lacks_is_downloaded(calls, tmp_path):
    made, outcomes = calls
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "tokenizer.json").touch()
    outcomes += [tmp_path / "empty", tmp_path / "full"]
    assert hub_folder("hf:org/name", ["tokenizer.json"], required="tokenizer.json") == tmp_path / "full"
    assert made == [(None, True), (None, False)]
