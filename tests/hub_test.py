"""Repositories of the Hub by name: the cache comes first, and every failure has its error and remedy."""

import pytest

from trivium.errors import ConfigError, DataError, MachineError
from trivium.hub import hub_folder, is_hub_name
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


@pytest.mark.parametrize(
    "failure, error, told",
    [
        (ConnectionError("no route"), MachineError, "the Hub cannot be reached .*no route.*local folder"),
        (None, DataError, "hf:org/name has no tokenizer.json"),
    ],
)
def test_a_failure_names_the_repository_and_the_remedy(calls, tmp_path, failure, error, told):
    _, outcomes = calls
    outcomes += [OSError("not cached"), tmp_path if error is DataError else failure]
    with pytest.raises(error, match=told):
        hub_folder("hf:org/name", ["tokenizer.json"], required="tokenizer.json")


@pytest.mark.parametrize("name", ["hf:", "hf:name", "hf:a/b/c", "hf:a b/c"])
def test_a_malformed_name_is_refused(name):
    assert is_hub_name(name)
    with pytest.raises(ConfigError, match="write hf:ORG/NAME"):
        hub_folder(name, [], required="x")


def test_without_its_package_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MachineError, match="pip install huggingface_hub"):
        hub_folder("hf:org/name", [], required="x")
