"""Hosts that differ are rejected on every rank before the first step, with what differs and where."""

import os
import shutil
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from chaos.scene import job, plan, write_tokens
from ranks import free_port, on_ranks
from trivium.comms.launch import Place, run_ranks
from trivium.comms.mesh import Mesh
from trivium.comms.terms import Terms, disagreement
from trivium.errors import ConfigError, DataError, MachineError, TriviumError
from trivium.plan.layout import Layout
from trivium.provenance import write_json
from trivium.tokens import manifest
from trivium.training import rank, terms
from trivium.training.loop import TrainingJob
from trivium.training.metrics import METRICS
from trivium.training.rank import refuse_separate_folders, train_rank
from trivium.training.terms import code_digest, terms_of
from trivium.training.verified_tokens import verify_together

Expected = tuple[type[TriviumError], list[str]]


def train_on_two_hosts(place: Place, port: int, jobs: list[TrainingJob], torch: str, expected: Expected) -> None:
    """Each rank is the only one of a host of its own; the second has its own settings, tokens, folder or torch."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    socket.gethostname = lambda: f"node-{'ab'[place.rank]}"
    if place.rank == 1 and torch:
        right = terms.versions
        terms.versions = lambda: right() | {"torch": torch}
    rank.refuse_separate_folders = partial(refuse_separate_folders, seconds=0.5)
    kind, says = expected
    with pytest.raises(kind) as refused:
        train_rank(Place(place.rank, place.world_size, 0, "env://", 1), jobs[place.rank])
    for words in says:
        assert words in str(refused.value), str(refused.value)


def refused_on_both(
    folder: Path, jobs: list[TrainingJob], kind: type[TriviumError], *says: str, torch: str = ""
) -> None:
    for each in jobs:
        each.out.mkdir(parents=True, exist_ok=True)
    run_ranks(train_on_two_hosts, 2, free_port(), jobs, torch, (kind, list(says)), timeout_seconds=60)
    assert not list(folder.rglob(METRICS)), "a step was done"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_tokens(tmp_path)


@pytest.mark.parametrize("setting", [{"lr": 0.0001}, {}], ids=["learning rate", "layout of as many ranks"])
def test_other_setting_on_the_second_host_is_rejected_on_both(tokens: Path, tmp_path: Path, setting: dict) -> None:
    one = job(tokens, tmp_path / "run", plan({"pipeline": 2}), steps=2)
    other = job(tokens, tmp_path / "run", plan({"pipeline": 2} if setting else {"data": 2}), steps=2, **setting)
    name, values = ("training.lr", ("0.003", "0.0001")) if setting else ("plan.layout.pipeline", ("2", "1"))
    says = f"{name}: {values[0]} on node-a (rank 0); {values[1]} on node-b (rank 1)"
    refused_on_both(tmp_path, [one, other], ConfigError, says)


def test_other_torch_is_rejected_with_both_versions(tokens: Path, tmp_path: Path) -> None:
    jobs = [job(tokens, tmp_path / "run", plan({"data": 2}), steps=2)] * 2
    refused_on_both(tmp_path, jobs, MachineError, "torch: ", "1.2.3 on node-b (rank 1)", torch="1.2.3")


def test_other_list_of_tokens_and_other_questions_are_rejected(tokens: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tokens, tmp_path / "other")
    about = manifest.read_tokens_manifest(other)
    about["files"] = {name: sha256[::-1] for name, sha256 in about["files"].items()}
    write_json(other / manifest.MANIFEST, about)
    one = job(tokens, tmp_path / "run", plan({"data": 2}), steps=2)
    jobs = [
        replace(one, questions={"questions of task hans": "a", "questions of task wic": "b"}),
        replace(one, questions={"questions of task hans": "c"}, tokens=other),
    ]
    says = (
        "manifest of the token shards: ",
        "questions of task hans: a on node-a (rank 0); c on node-b (rank 1)",
        "questions of task wic: b on node-a (rank 0); absent on node-b (rank 1)",
    )
    refused_on_both(tmp_path, jobs, DataError, *says)


@pytest.mark.parametrize("name", ["train-even.bin", "validation-odd.bin"])  # either rank would have read one of them
def test_other_bytes_in_a_shard_of_one_hosts_copy_are_rejected(tokens: Path, tmp_path: Path, name: str) -> None:
    other = shutil.copytree(tokens, tmp_path / "other")
    before, data = (other / name).stat(), bytearray((other / name).read_bytes())
    data[0] ^= 1
    (other / name).write_bytes(data)
    os.utime(other / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    jobs = [job(folder, tmp_path / "run", plan({"data": 2}), steps=2) for folder in (tokens, other)]
    refused_on_both(tmp_path, jobs, DataError, f"on node-b: {other / name} is damaged or was replaced")


def test_separate_folders_are_rejected_with_the_hosts(tokens: Path, tmp_path: Path) -> None:
    jobs = [job(tokens, tmp_path / name / "run", plan({"data": 2}), steps=2) for name in "ab"]
    says = ("is not one folder on all hosts", "node-b (rank 1): what rank 0 wrote there is not seen here")
    refused_on_both(tmp_path, jobs, MachineError, *says)
    assert [list((tmp_path / name / "run").iterdir()) for name in "ab"] == [[], []], "nothing is left there"


def same_folder(place: Place, out: Path) -> None:
    mesh = Mesh.connect(Layout(data=2), place.rank, place.world_size)
    refuse_separate_folders(out, Place(place.rank, 2, 0, "env://", 1), mesh)


def test_shared_folder_passes_and_stays_empty(tmp_path: Path) -> None:
    on_ranks(2, same_folder, tmp_path)
    assert list(tmp_path.iterdir()) == []


def verify_a_copy(place: Place, copies: list[Path], out: Path) -> None:
    mesh = Mesh.connect(Layout(data=4), place.rank, place.world_size)
    right, names = manifest.file_sha256, []
    manifest.file_sha256 = lambda path, alive: names.append(path.name) or right(path, alive)
    for count in (4, 0):  # the second time nothing is read again
        names.clear()
        verify_together(copies[place.rank // 2], out, mesh, lambda: None)
        assert len(names) == count


def test_ranks_of_a_host_share_the_reading_of_its_copy(tokens: Path, tmp_path: Path) -> None:
    shutil.copytree(tokens, tmp_path / "other")
    on_ranks(4, verify_a_copy, [tokens, tmp_path / "other"], tmp_path)


def test_paths_and_places_may_differ_between_hosts(tokens: Path, tmp_path: Path) -> None:
    shutil.copytree(tokens, tmp_path / "other")
    given = [
        job(folder, tmp_path, plan({"data": 2}), steps=2, start_from=str(folder / "step-00000001"))
        for folder in (tokens, tmp_path / "other")
    ]
    one, two = (terms_of(each.plan, each.training, each.seed, each.tokens, {}) for each in given)
    assert one == two and one.digest == two.digest


def test_edited_code_has_another_digest(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    before = code_digest(tmp_path)
    (tmp_path / "a.py").write_text("x = 2")
    assert code_digest(tmp_path) != before and code_digest() == code_digest()


def test_error_for_thousands_of_ranks_names_a_few_hosts_and_fields() -> None:
    alike = Terms({f"f{n}": "1" for n in range(30)}, {}, {})
    other = Terms({f"f{n}": "2" for n in range(30)}, {}, {})
    hosts = [f"node-{rank // 8}" for rank in range(4096)]
    digests = [(other if rank >= 2048 else alike).digest for rank in range(4096)]
    asked: list[int] = []
    error = disagreement(hosts, digests, lambda rank: asked.append(rank) or (alike, other)[rank >= 2048])
    assert isinstance(error, ConfigError) and asked == [0, 2048], "the terms of two ranks are read"
    lines = str(error).splitlines()
    assert len(lines) == 10 and lines[-1] == "and 22 more"
    assert "on node-256, node-257" in lines[1] and "and 248 more hosts (ranks 2048, 2049" in lines[1]


@pytest.mark.parametrize("fields", [7, 8])
def test_if_every_difference_is_named_no_others_are_counted(fields: int) -> None:
    each = [Terms({f"f{n}": str(rank) for n in range(fields)}, {}, {}) for rank in range(2)]
    error = disagreement(["a", "b"], [terms.digest for terms in each], each.__getitem__)
    lines = str(error).splitlines()
    assert len(lines) == 1 + fields and lines[-1].startswith(f"f{fields - 1}: 0 on a")
