"""Training verifies the token shards before the first step, and reads no shard twice to do so."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chaos.scene import job, plan, write_tokens
from ranks import on_ranks
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.errors import DataError
from trivium.plan.layout import Layout
from trivium.provenance import file_sha256, write_json
from trivium.tokens import manifest, shards
from trivium.tokens.manifest import read_tokens_manifest
from trivium.training.metrics import EVENTS, append, read
from trivium.training.supervision.job import start
from trivium.training.verified_tokens import verify_together

SHARDS = 2 * 2 * 2  # sources, splits, files of a shard


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_tokens(tmp_path)


@pytest.fixture
def hashed(monkeypatch) -> list[str]:
    """The names of the files that were hashed."""
    right, names = manifest.file_sha256, []

    def noted(path: Path, alive: Callable[[], None]) -> str:
        names.append(path.name)
        return right(path, alive)

    monkeypatch.setattr(manifest, "file_sha256", noted)
    return names


def verify(tokens: Path) -> list[int]:
    heartbeats: list[int] = []
    verify_together(tokens, tokens.parent, Mesh.single(), lambda: heartbeats.append(1))
    return heartbeats


def put_wrong_ids(path: Path) -> None:
    """Replace every 7th id by one that no vocabulary has, without a change of the file's size and time."""
    before, ids = path.stat(), np.fromfile(path, dtype=np.uint16)
    ids[::7] = 60_000
    ids.tofile(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_shard_is_hashed_once_and_again_only_if_it_was_touched(tokens: Path, hashed: list[str]) -> None:
    assert verify(tokens), "a rank that reads for long sends heartbeats"
    assert len(hashed) == len(set(hashed)) == SHARDS
    verify(tokens)
    assert len(hashed) == SHARDS
    (tokens / "train-even.bin").touch()
    verify(tokens)
    assert hashed[SHARDS:] == ["train-even.bin"]
    put_wrong_ids(tokens / "train-odd.bin")
    for _ in range(2):
        with pytest.raises(DataError, match=r"train-odd\.bin is damaged or was replaced"):
            verify(tokens)


def share(place: Place, tokens: Path) -> None:
    mesh = Mesh.connect(Layout(data=2), place.rank, place.world_size)
    right, names = manifest.file_sha256, []
    manifest.file_sha256 = lambda path, alive: names.append(path.name) or right(path, alive)
    with pytest.raises(DataError, match=r"train-even\.bin is damaged or was replaced"):
        verify_together(tokens, tokens.parent, mesh, lambda: None)
    assert 0 < sum(name.endswith(".bin") for name in names) <= SHARDS / 4, "each reads half of the ids"


def test_ranks_share_the_reading_and_all_report_damage(tokens: Path) -> None:
    put_wrong_ids(tokens / "train-even.bin")
    on_ranks(2, share, tokens)


def test_training_on_a_replaced_shard_ends_at_once_and_names_it(tokens: Path, tmp_path: Path) -> None:
    put_wrong_ids(tokens / "train-odd.bin")
    with pytest.raises(DataError, match=r"train-odd\.bin is damaged or was replaced"):
        start(job(tokens, tmp_path / "run", plan({"tensor": 2}), steps=2, restarts=2))
    assert len(read(tmp_path / "run" / EVENTS)) == 1, "it was not tried again"


def test_index_is_read_whole_once_and_not_by_ranks_that_train(tokens: Path, tmp_path: Path, monkeypatch) -> None:
    right, read_whole = shards._check_sequences, tmp_path / "read"

    def noted(path: Path, *given: object) -> None:
        append(read_whole, {"index": path.name})
        right(path, *given)

    monkeypatch.setattr(shards, "_check_sequences", noted)
    for steps in (2, 3):
        start(job(tokens, tmp_path / "run", plan({"data": 2}), steps=steps))
        assert sorted(line["index"] for line in read(read_whole)) == sorted(p.name for p in tokens.glob("*.idx"))


def test_invalid_index_is_rejected_though_its_hash_is_right(tokens: Path) -> None:
    path = tokens / "train-odd.idx"
    data = bytearray(path.read_bytes())
    data[34 + 4 : 34 + 8] = b"\xff" * 4
    path.write_bytes(data)
    about = read_tokens_manifest(tokens)
    about["files"][path.name] = file_sha256(path)
    write_json(tokens / manifest.MANIFEST, about)
    with pytest.raises(DataError, match=r"train-odd\.idx: sequence 1 has length -1"):
        verify(tokens)
