"""Checkpoints at a URL: what is published loads bit for bit after any fault, and nothing half-written is taken for
whole."""

from contextlib import suppress

import fsspec
import pytest
import torch

from ranks import on_ranks
from trivium.checkpoint import in_store
from trivium.checkpoint.format import MANIFEST, published
from trivium.checkpoint.load import Checkpoint, newest_good
from trivium.checkpoint.save import Fragment, prune, save
from trivium.checkpoint.verify import refuse_incomplete
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError
from trivium.plan.layout import Layout
from trivium.plan.parameters import Box
from trivium.stores import requests
from trivium.stores.remote import Remote

MESH = Mesh.single()
SHAPE = (50, 8)
WHOLE = Box((0, 0), SHAPE)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(in_store, "FILE_BYTES", 320)  # ten rows


def state(step):
    values = torch.randn(SHAPE, generator=torch.Generator().manual_seed(step))
    return [Fragment("weights/a", SHAPE, WHOLE, values), Fragment("scalar", (), Box((), ()), values[0, 0].clone())]


def saved(root, step):
    return save(root, step, state(step), MESH, {})


def assert_is_of(checkpoint, step):
    for fragment in state(step):
        assert torch.equal(checkpoint.read(fragment.name, fragment.box, torch.float32), fragment.values)


def test_a_checkpoint_at_a_url_is_the_same_as_in_a_folder(bucket, tmp_path):
    place = saved(bucket, 3)
    assert published(bucket) == [place] and place.name == "step-00000003"
    refuse_incomplete(place)
    there = newest_good(bucket, MESH, print)
    assert_is_of(there, 3)
    assert len(there.manifest["files"]) == 6
    for name in [MANIFEST, *there.manifest["files"]]:
        (tmp_path / place.name).mkdir(exist_ok=True)
        (tmp_path / place.name / name).write_bytes((place / name).read())
    assert_is_of(newest_good(tmp_path, MESH, print), 3)


def test_only_the_rows_that_are_wanted_are_read(store, bucket, monkeypatch):
    checkpoint = Checkpoint.open(saved(bucket, 1))
    monkeypatch.setattr(in_store, "_HEADER_GUESS", 8)
    before, read = list(store.requests), []
    monkeypatch.setattr(
        Remote, "read", lambda self, a=0, b=None, own=Remote.read: read.append(b - a) or own(self, a, b)
    )
    box = Box((12, 3), (5, 2))
    assert torch.equal(checkpoint.read("weights/a", box, torch.float32), state(1)[0].values[12:17, 3:5])
    asked = {path for kind, path in store.requests[len(before) :] if kind == "GET"}
    assert len(asked) == 1 and read[-1] == 5 * 8 * 4


DESCRIBED, PUBLISHED = 6, 7  # the number of the first write of each kind


@pytest.mark.parametrize(
    "at, fault",
    [(0, "half"), (PUBLISHED, "half"), (3, 503), (DESCRIBED, 503), (PUBLISHED, 503), (3, "stall"), (PUBLISHED, "lost")],
)
def test_after_a_fault_the_last_published_checkpoint_is_whole_and_the_next_save_publishes(
    store, bucket, monkeypatch, at, fault
):
    saved(bucket, 1)
    store.put_faults = [""] * at + [fault]
    with monkeypatch.context() as patch:
        patch.setattr(requests, "ATTEMPTS", 1)
        patch.setattr(requests, "REQUEST_SECONDS", 2.0 if fault == "stall" else 60.0)
        with suppress(CheckpointError):
            saved(bucket, 2)
    there = newest_good(bucket, MESH, print)
    assert_is_of(there, there.step)
    assert there.step == (2 if fault == "lost" else 1)  # of which only an answer was lost
    saved(bucket, 2)
    again = newest_good(bucket, MESH, pytest.fail)
    assert_is_of(again, 2)
    assert (bucket / "step-00000002").sizes().keys() == {MANIFEST, *again.manifest["files"]}


class Killed(Exception):
    """Stands for the end of the process in the middle of a save."""


def test_a_save_that_was_killed_goes_on_and_sends_only_the_files_that_are_missing(store, bucket, monkeypatch):
    real = Remote.write

    def write(self, data):
        if "pieces" in self.name and sum(k == "PUT" for k, _ in store.requests) == 3:
            raise Killed
        real(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "write", write)
        with pytest.raises(CheckpointError):
            saved(bucket, 2)
    assert published(bucket) == [] and newest_good(bucket, MESH, print) is None
    kept, sent = (bucket / "step-00000002").sizes(), store.sent
    assert len(kept) == 3 and sent == sum(kept.values())
    checkpoint = Checkpoint.open(saved(bucket, 2))
    files = {name: file["bytes"] for name, file in checkpoint.manifest["files"].items()}
    others = sum(len(data) for path, data in store.files.items() if path.endswith(MANIFEST))
    described = store.sent - sent - others - sum(n for name, n in files.items() if name not in kept)
    assert kept.items() <= files.items() and 0 < described < 4096  # the description, which is deleted
    assert_is_of(checkpoint, 2)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(store, bucket):
    saved(bucket, 1)
    saved(bucket, 2)
    path = next(path for path in store.files if "step-00000002/pieces" in path)
    store.files[path] = store.files[path][:-1] + bytes([store.files[path][-1] ^ 1])
    said = []
    assert_is_of(newest_good(bucket, MESH, said.append), 1)
    assert "does not have its sha256" in said[0] and f"{bucket}/step-00000002/pieces" in said[0]
    saved(bucket, 2)
    assert_is_of(newest_good(bucket, MESH, pytest.fail), 2)


def test_what_is_no_longer_kept_and_what_was_never_finished_is_deleted(store, bucket):
    paths = [saved(bucket, step) for step in (1, 2, 3)]
    (bucket / "step-00000002").delete([MANIFEST])
    prune(bucket, [paths[0]], paths[2])
    assert bucket.folders() == [paths[2]]
    with pytest.raises(CheckpointError, match="is not published"):
        prune(bucket, [paths[2]], paths[0])


def save_on(place, url, conf):
    fsspec.config.conf["s3"] = conf
    mesh = Mesh.connect(Layout(data=2), place.rank, place.world_size, place.device)
    rows = Box((25 * place.rank, 0), (25, 8))
    values = state(5)[0].values[rows.within(WHOLE)]
    save(Remote(url), 5, [Fragment("weights/a", SHAPE, rows, values)], mesh, {})
    whole = newest_good(Remote(url), mesh, print)
    assert torch.equal(whole.read("weights/a", WHOLE, torch.float32), state(5)[0].values)


def test_every_rank_sends_its_own_pieces(store, bucket):
    on_ranks(2, save_on, bucket.url, fsspec.config.conf["s3"])
    ranks = {path.split("pieces-")[1][:5] for kind, path in store.requests if kind == "PUT" and "pieces-" in path}
    assert ranks == {"00000", "00001"}
