"""Models of the Hub by name: what is downloaded, and what each failure tells."""

import sys
from pathlib import Path

import pytest
from huggingface_hub import errors

import trivium.hub as hub
from trivium.errors import ConfigError, DataError, MachineError
from trivium.tokens.tokenizer import given_tokenizer, train_tokenizer


def failed(kind: type[Exception]) -> Exception:
    """Return an exception of the package without the HTTP response that its constructor wants."""
    return kind.__new__(kind)


class FakeHub:
    """Stands for huggingface_hub with an empty cache: gives one folder, or fails."""

    errors = errors

    def __init__(self, folder: Path | None = None, failure: Exception | None = None) -> None:
        self.folder, self.failure, self.asked = folder, failure, []

    def snapshot_download(self, repository, *, allow_patterns, local_files_only, **_) -> str:
        if local_files_only:
            raise failed(errors.LocalEntryNotFoundError)
        self.asked.append((repository, allow_patterns))
        if self.failure is not None:
            raise self.failure
        return str(self.folder)


@pytest.fixture
def gives(monkeypatch, tmp_path):
    """Return a function that puts a fake in the place of the package."""

    def put(**settings) -> FakeHub:
        fake = FakeHub(**settings)
        monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
        return fake

    return put


def test_settings_alone_are_downloaded_without_weights(gives, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    fake = gives(folder=tmp_path)
    assert hub.downloaded("hf:org/name", weights=False) == tmp_path
    with pytest.raises(DataError, match=r"hf:org/name has no \*\.safetensors; give a repository that has one"):
        hub.downloaded("hf:org/name", weights=True)
    (tmp_path / "model.safetensors").touch()
    assert hub.downloaded("hf:org/name", weights=True) == tmp_path
    assert [repository for repository, _ in fake.asked] == ["org/name"] * 3
    assert ["*.safetensors" in patterns for _, patterns in fake.asked] == [False, True, True]


@pytest.mark.parametrize(
    ("failure", "kind", "told"),
    [
        (failed(errors.RepositoryNotFoundError), DataError, "did you mean 'hf:meta-llama/Llama-3.1-8B'"),
        (failed(errors.GatedRepoError), DataError, "cannot be read: GatedRepoError.*hf auth login"),
        (failed(errors.LocalEntryNotFoundError), MachineError, "the Hub cannot be reached.*give a local folder"),
        (ConnectionError("no route"), MachineError, r"cannot be reached \(ConnectionError: no route\)"),
    ],
    ids=["missing", "gated", "offline", "unreachable"],
)
def test_each_failure_names_its_remedy(gives, failure: Exception, kind: type, told: str) -> None:
    gives(failure=failure)
    with pytest.raises(kind, match=told):
        hub.downloaded("hf:meta-llama/Llama-3.1-8b", weights=True)


def test_missing_package_is_refused_with_the_command_that_installs_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MachineError, match="huggingface_hub is not installed; run `pip install huggingface_hub`"):
        hub.downloaded("hf:org/name", weights=False)


@pytest.mark.parametrize("name", ["hf:gpt2", "hf:", "hf:a/b/c", "hf:openai-community/"])
def test_malformed_name_is_refused_before_anything_is_asked(gives, name: str) -> None:
    fake = gives()
    with pytest.raises(ConfigError, match="write hf:ORG/NAME or hf:ORG/NAME@REVISION; "):
        hub.downloaded(name, weights=False)
    assert fake.asked == []
    assert hub.nearest_hub_name("hf:gpt2") == "did you mean 'hf:openai-community/gpt2'?"


def test_folder_of_the_cache_has_the_name_of_its_model(tmp_path: Path) -> None:
    assert hub.name_of(tmp_path / "models--org--some-name" / "snapshots" / "0f1e") == "org/some-name"
    assert hub.name_of(tmp_path / "mine") == "mine"


def test_tokenizer_is_named_as_a_model_of_the_hub(gives, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    words = train_tokenizer(["some words"] * 3, 260)
    words.save(tmp_path / "tokenizer.json")
    gives(folder=tmp_path)
    assert given_tokenizer("hf:org/name").identity == words.identity
