"""Checkpoints at a URL: what is published loads bit for bit after any fault, and nothing half-written is taken for
whole."""

import pytest
import torch

from ranks import on_ranks
from stores.conftest import bucket, store  # noqa: F401
from trivium.checkpoint import in_store
from trivium.checkpoint.format import MANIFEST, published
from trivium.checkpoint.load import Checkpoint, newest_good
from trivium.checkpoint.save import Fragment, prune, save
from trivium.checkpoint.verify import refuse_incomplete
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError
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
    monkeypatch.setattr(Remote, "read", lambda self, a=0, b=None, own=Remote.read: read.append(b - a) or own(self, a, b))
    box = Box((12, 3), (5, 2))
    assert torch.equal(checkpoint.read("weights/a", box, torch.float32), state(1)[0].values[12:17, 3:5])
    asked = {path for kind, path in store.requests[len(before) :] if kind == "GET"}
    assert len(asked) == 1 and read[-1] == 5 * 8 * 4


@pytest.mark.parametrize("fault", ["half", 503, "lost", "timeout"])
@pytest.mark.parametrize("at", [0, 3, 6, 7])
def test_after_a_fault_the_last_published_checkpoint_is_whole_and_a_new_save_sends_the_rest(
    store, bucket, monkeypatch, fault, at
):
    """at: the write that fails: of the first file, a later one, the description, the manifest."""
    saved(bucket, 1)
    first = store.sent
    monkeypatch.setattr(requests, "ATTEMPTS", 1)
    store.put_faults = [""] * at + [503 if fault == "timeout" else fault]
    if fault == "timeout":
        monkeypatch.setattr(requests, "_within", lambda _, call, real=requests._within: timed_out(store, call, real))
    try:
        saved(bucket, 2)
    except CheckpointError:
        pass
    step = 2 if (bucket / "step-00000002" / MANIFEST).is_file() and fault != "half" else 1
    if not (at == 7 and fault == "half"):  # a manifest of which half is kept is found to be damaged
        assert_is_of(newest_good(bucket, MESH, print), step)
    monkeypatch.undo()
    monkeypatch.setattr(in_store, "FILE_BYTES", 320)
    store.put_faults, before = [], store.sent
    saved(bucket, 2)
    assert_is_of(newest_good(bucket, MESH, pytest.fail), 2)
    files = {name: f["bytes"] for name, f in Checkpoint.open(bucket / "step-00000002").manifest["files"].items()}
    assert store.sent - before <= first and set((bucket / "step-00000002").sizes()) == {MANIFEST, *files}
    if at == 3 and fault == 503:
        missing = sum(sorted(files.values(), reverse=True)[: len(files) - 3])
        assert sum(p.endswith(".safetensors") for k, p in store.requests if k == "PUT") == 6 + 4 + 3
        assert store.sent - before < first - 3 * 320 and missing


def timed_out(store, call, real):
    return real(60.0, call)
