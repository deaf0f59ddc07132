"""Hosts that were not started alike are refused on every rank before the first step, with what differs and where."""

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


def test_another_setting_on_the_second_host_is_refused_on_both(tokens: Path, tmp_path: Path) -> None:
    one, other = (job(tokens, tmp_path / "run", plan({"pipeline": 2}), steps=2, lr=lr) for lr in (0.003, 0.0001))
    refused_on_both(
        tmp_path, [one, other], ConfigError, "training.lr: 0.003 on node-a (rank 0); 0.0001 on node-b (rank 1)"
    )


def test_another_layout_of_as_many_ranks_is_refused_before_groups_are_made(tokens: Path, tmp_path: Path) -> None:
    jobs = [job(tokens, tmp_path / "run", plan(layout), steps=2) for layout in ({"tensor": 2}, {"data": 2})]
    refused_on_both(tmp_path, jobs, ConfigError, "plan.layout.tensor: 2 on node-a", "1 on node-b (rank 1)")


def test_another_torch_is_refused_with_both_versions(tokens: Path, tmp_path: Path) -> None:
    jobs = [job(tokens, tmp_path / "run", plan({"data": 2}), steps=2)] * 2
    refused_on_both(tmp_path, jobs, MachineError, "torch: ", "1.2.3 on node-b (rank 1)", torch="1.2.3")


def test_another_list_of_tokens_is_refused(tokens: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tokens, other)
    about = manifest.read_tokens_manifest(other)
    about["files"] = {name: sha256[::-1] for name, sha256 in about["files"].items()}
    write_json(other / manifest.MANIFEST, about)
    jobs = [job(folder, tmp_path / "run", plan({"data": 2}), steps=2) for folder in (tokens, other)]
    refused_on_both(tmp_path, jobs, DataError, "manifest of the token shards: ", "on node-b (rank 1)")


def test_other_questions_on_the_second_host_are_refused_by_task(tokens: Path, tmp_path: Path) -> None:
    one = job(tokens, tmp_path / "run", plan({"data": 2}), steps=2)
    jobs = [
        replace(one, questions={"questions of task hans": "a", "questions of task wic": "b"}),
        replace(one, questions={"questions of task hans": "c"}),
    ]
    hans = "questions of task hans: a on node-a (rank 0); c on node-b (rank 1)"
    wic = "questions of task wic: b on node-a (rank 0); absent on node-b (rank 1)"
    refused_on_both(tmp_path, jobs, DataError, hans, wic)


@pytest.mark.parametrize("name", ["train-even.bin", "train-odd.bin", "validation-even.bin", "validation-odd.bin"])
def test_other_bytes_in_any_shard_of_one_hosts_copy_are_refused(tokens: Path, tmp_path: Path, name: str) -> None:
    """Whichever rank would have been the one to read this shard."""
    other = tmp_path / "other"
    shutil.copytree(tokens, other)
    before, data = (other / name).stat(), bytearray((other / name).read_bytes())
    data[0] ^= 1
    (other / name).write_bytes(data)
    os.utime(other / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    jobs = [job(folder, tmp_path / "run", plan({"data": 2}), steps=2) for folder in (tokens, other)]
    refused_on_both(tmp_path, jobs, DataError, f"on node-b: {other / name} is damaged or was replaced")


def test_folders_of_their_own_are_refused_with_the_hosts(tokens: Path, tmp_path: Path) -> None:
    jobs = [job(tokens, tmp_path / name / "run", plan({"data": 2}), steps=2) for name in "ab"]
    says = ("is not one folder on all hosts", "node-b (rank 1): what rank 0 wrote there is not seen here")
    refused_on_both(tmp_path, jobs, MachineError, *says)
    assert [list((tmp_path / name / "run").iterdir()) for name in "ab"] == [[], []], "nothing is left there"


def same_folder(place: Place, out: Path) -> None:
    mesh = Mesh.connect(Layout(data=2), place.rank, place.world_size)
    refuse_separate_folders(out, Place(place.rank, 2, 0, "env://", 1), mesh)


def test_one_folder_passes_and_nothing_stays_in_it(tmp_path: Path) -> None:
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


def test_ranks_of_a_host_share_the_reading_of_its_own_copy(tokens: Path, tmp_path: Path) -> None:
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


def test_code_that_was_edited_is_other_code(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    before = code_digest(tmp_path)
    (tmp_path / "a.py").write_text("x = 2")
    assert code_digest(tmp_path) != before and code_digest() == code_digest()


def test_of_thousands_of_ranks_a_few_hosts_and_fields_are_named() -> None:
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
