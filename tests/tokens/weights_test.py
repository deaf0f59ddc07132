"""Weights of targets: stored beside the ids, checksummed, and moved with the targets."""

from pathlib import Path

import numpy as np
import pytest

from plans import small
from tokens.adopt_test import adopted, megatron_pair, texts, words
from trivium.errors import DataError
from trivium.tokens.manifest import open_shards, read_tokens_manifest, verify_tokens
from trivium.tokens.samples import TokenDataset
from trivium.tokens.shards import ShardWriter, TokenShard
from trivium.tokens.tokenizer import Tokenizer
from trivium.training.config import TrainingConfig
from trivium.training.lineage import trace as lineage
from trivium.training.loop import TrainingJob
from trivium.training.record import read_record
from trivium.training.supervision.job import start

__all__ = ["words"]
IDS, LENGTHS = np.array([5, 6, 7, 8, 9]), np.array([3, 2])
WEIGHTS = {"uint8": [0, 1, 255, 0, 2], "float32": [0, 0.25, 1e-3, 1e9, 2]}


def weights_of(ids: np.ndarray) -> np.ndarray:
    """Weights that depend on the id alone, some of them 0."""
    return (ids % 5 / 4).astype("<f4")


def with_weights(prefix: Path, documents: list[list[int]], dtype: str = "<f4") -> Path:
    """Write a pair with weights beside it."""
    ids = np.concatenate(documents)
    prefix.with_name(f"{prefix.name}.weights").write_bytes(
        (weights_of(ids) * (4 if dtype == "u1" else 1)).astype(dtype)
    )
    return megatron_pair(prefix, documents)


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_weights_are_read_as_they_were_written(tmp_path: Path, dtype: str) -> None:
    writer, weights = ShardWriter(tmp_path / "x", dtype="uint16", weights=dtype), np.array(WEIGHTS[dtype])
    writer.append(IDS[:3], LENGTHS[:1], weights[:3])
    writer.append(IDS[3:], LENGTHS[1:], weights[3:])
    writer.close()
    shard = TokenShard.open(tmp_path / "x")
    assert shard.weights.dtype == dtype
    assert shard.weights.tolist() == weights.astype(dtype).tolist()
    assert shard.part(1, 1).weights.tolist() == shard.weights.tolist()[3:]


def test_shard_without_the_file_has_no_weights(tmp_path: Path) -> None:
    assert TokenShard.open(megatron_pair(tmp_path / "x", [[5, 6], [7]])).weights is None


@pytest.mark.parametrize(
    ("dtype", "weights", "message"),
    [
        ("uint8", [1, 1, 0.5], "weight 0.5 is no whole number from 0 to 255; write this shard with float32"),
        ("uint8", [1, 256, 1], "weight 256.0 is no whole number"),
        ("float32", [1, -1, 1], "token 1 has weight -1.0; weights are finite numbers of 0 or more"),
        ("float32", [1, 1, np.nan], "token 2 has weight nan"),
        ("float32", [1, 1], "2 weights for 3 ids"),
        ("uint8", None, "0 weights for 3 ids"),
    ],
)
def test_weights_that_cannot_be_stored_are_refused(tmp_path: Path, dtype: str, weights: list, message: str) -> None:
    writer = ShardWriter(tmp_path / "x", dtype="uint16", weights=dtype)
    with pytest.raises(DataError, match=message):
        writer.append(IDS[:3], LENGTHS[:1], None if weights is None else np.array(weights, float))


def test_file_of_another_size_is_refused(tmp_path: Path) -> None:
    prefix = megatron_pair(tmp_path / "x", [[5, 6], [7]])
    (tmp_path / "x.weights").write_bytes(bytes(5))
    with pytest.raises(DataError, match=r"x.weights has 5 bytes, but there are 3 tokens"):
        TokenShard.open(prefix)


@pytest.mark.parametrize("sequence", [8, 900])  # the second is longer than any source
def test_a_target_has_the_weight_of_its_own_token(tmp_path: Path, words: Tokenizer, sequence: int) -> None:
    pairs = (
        with_weights(tmp_path / "floats", texts(0, 30)),
        with_weights(tmp_path / "bytes", texts(40, 30), "u1"),
        megatron_pair(tmp_path / "plain", texts(80, 30)),
    )
    tokens = adopted(tmp_path, words, *pairs, weights=(1.0, 1.0, 1.0))
    said = {name: entry["train"].get("weights") for name, entry in read_tokens_manifest(tokens)["sources"].items()}
    assert said == {"floats": "float32", "bytes": "uint8", "plain": None}
    data = TokenDataset.open(tokens, "train", sequence=sequence, seed=3)
    rows = data.rows(0, 30)
    assert (rows.tokens[:, 1:] == rows.targets[:, :-1]).all()
    for i, (targets, weights) in enumerate(zip(rows.targets, rows.weights, strict=True)):
        expected = {"floats": weights_of(targets), "bytes": 4 * weights_of(targets), "plain": np.ones(sequence)}
        assert weights.tolist() == expected[data.where(i).source].tolist()


def test_training_reads_weights_and_refuses_changed_ones(tmp_path: Path, words: Tokenizer) -> None:
    tokens = adopted(tmp_path, words, with_weights(tmp_path / "web", texts(0, 40)))
    model = {"vocabulary": words.vocabulary, "layers": 2, "sequence": 8}
    plan = small(model=model, batch={"sequences": 8, "micro": 2, "ramp": None})
    job = TrainingJob(plan, TrainingConfig(steps=2, validation_samples=2, restarts=0), 5, tokens, tmp_path / "training")
    start(job)
    record = read_record(tmp_path / "training")
    assert all(lineage.batch(record, step)["agrees"] for step in (1, 2))
    weights = tmp_path / "web.weights"
    weights.write_bytes(bytes(len(weights.read_bytes())))
    with pytest.raises(DataError, match=r"web.weights is damaged or was replaced"):
        verify_tokens(tokens)
    with pytest.raises(DataError, match=r"web.weights is damaged or was replaced"):
        start(TrainingJob(plan, TrainingConfig(steps=2, restarts=0), 5, tokens, tmp_path / "other"))
    weights.unlink()
    with pytest.raises(DataError, match=r"web.weights holds nothing, and manifest.json lists float32"):
        open_shards(tokens, "train")


def test_weights_that_are_no_numbers_are_not_adopted(tmp_path: Path, words: Tokenizer) -> None:
    prefix = with_weights(tmp_path / "web", texts(0, 40))
    weights = np.fromfile(tmp_path / "web.weights", "<f4")
    weights[7] = np.inf
    weights.tofile(tmp_path / "web.weights")
    with pytest.raises(DataError, match=r"web.weights: token 7 has weight inf"):
        adopted(tmp_path, words, prefix)
