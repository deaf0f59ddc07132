import json

import numpy as np
import pytest

from tokens.curated import curated, documents
from trivium.errors import DataError
from trivium.provenance import STAMP, publishing
from trivium.tokens.config import TokensConfig
from trivium.tokens.encode import tokenize
from trivium.tokens.manifest import MANIFEST, open_shards, read_tokens_manifest, token_counts, verify_tokens


@pytest.fixture
def directory(tmp_path):
    source = curated(tmp_path / "curated", documents({"a": 20, "b": 10}), {"a": 2, "b": 1})
    (tmp_path / "tokens").mkdir()
    tokenize(TokensConfig(vocabulary=300, validation_fraction=0.2), source, tmp_path / "tokens", seed=3)
    return tmp_path / "tokens"


def test_counts_cover_every_token_of_the_split(directory):
    for split in ("train", "validation"):
        counts = token_counts(directory, split)
        tokens = np.concatenate([s.tokens for s in open_shards(directory, split).values()])
        assert counts.sum() == len(tokens) > 0
        assert all(counts[t] == (tokens == t).sum() for t in range(300))


def test_changed_byte_in_any_file_is_detected(directory):
    verify_tokens(directory)
    for name in read_tokens_manifest(directory)["files"]:
        path = directory / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(DataError, match=name.replace(".", r"\.") + " is damaged"):
            verify_tokens(directory)
        path.unlink()
        with pytest.raises(DataError, match=name.replace(".", r"\.") + " is missing"):
            verify_tokens(directory)
        path.write_bytes(whole)


def test_manifest_lists_exactly_the_published_files(tmp_path):
    source = curated(tmp_path / "curated", documents({"a": 20}), {"a": 1})
    with publishing(tmp_path / "tokens", verb="tokenize", config={}, inputs={}) as partial:
        tokenize(TokensConfig(vocabulary=300), source, partial, seed=3)
    there = {path.name for path in (tmp_path / "tokens").iterdir()}
    assert read_tokens_manifest(tmp_path / "tokens")["files"].keys() == there - {MANIFEST, STAMP}
    verify_tokens(tmp_path / "tokens")


def test_id_outside_vocabulary_is_rejected(directory):
    path = directory / "train-a.bin"
    path.write_bytes(b"\xff\xff" + path.read_bytes()[2:])
    with pytest.raises(DataError, match="id 65535"):
        token_counts(directory, "train")


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), ("[]", "list"), (json.dumps({"format": "other"}), "'other'")]
)
def test_invalid_manifest_is_rejected(tmp_path, text, message):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=message):
        read_tokens_manifest(tmp_path)


def test_missing_manifest_names_the_command(tmp_path):
    with pytest.raises(DataError, match="trivium tokenize"):
        read_tokens_manifest(tmp_path)
