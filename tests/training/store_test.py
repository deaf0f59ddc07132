"""A training whose checkpoints are at a URL is the same training, and resumes from there on a machine without them."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from chaos.scene import job, plan, write_tokens
from trivium.checkpoint.format import published, step_name
from trivium.checkpoint.load import Checkpoint
from trivium.plan.parameters import Box
from trivium.stores.folder import download
from trivium.training.metrics import METRICS, read
from trivium.training.observers import mirror
from trivium.training.record import CHECKPOINTS, RECORDS
from trivium.training.supervision.job import start


def tensors(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    whole = {n: Box((0,) * len(t["shape"]), tuple(t["shape"])) for n, t in checkpoint.manifest["tensors"].items()}
    return {name: checkpoint.read(name, box, torch.float64) for name, box in whole.items()}


def test_a_run_at_a_url_goes_on_on_another_machine_as_if_it_had_not_stopped(bucket, tmp_path: Path):
    tokens, one = write_tokens(tmp_path), plan({})
    start(job(tokens, tmp_path / "unbroken", one, steps=4, decay="constant"))
    for out, steps in (("first", 2), ("second", 4)):
        if out == "second":
            download(bucket / RECORDS, tmp_path / out)
        start(job(tokens, tmp_path / out, one, steps=steps, decay="constant", store=bucket.url))
    assert not (tmp_path / "second" / CHECKPOINTS).exists()
    assert [place.name for place in published(bucket / CHECKPOINTS)] == [step_name(2), step_name(4)]
    there = Checkpoint.open(bucket / CHECKPOINTS / step_name(4))
    here = Checkpoint.open(tmp_path / "unbroken" / CHECKPOINTS / step_name(4))
    assert tensors(there).keys() == tensors(here).keys()
    assert all(torch.equal(value, tensors(here)[name]) for name, value in tensors(there).items())
    download(bucket / RECORDS, tmp_path / "third")
    assert read(tmp_path / "third" / METRICS) == read(tmp_path / "second" / METRICS)
    assert [m["step"] for m in read(tmp_path / "third" / METRICS) if "batch_hash" in m] == [1, 2, 3, 4]


def test_records_of_a_checkpoint_that_is_saved_during_an_upload_follow_it(tmp_path: Path, monkeypatch) -> None:
    begun, ends, sent = threading.Event(), threading.Event(), list[str]()

    def upload(folder: Path, *_: Any) -> None:
        sent.append((folder / METRICS).read_text())
        begun.set()
        assert ends.wait(30)

    monkeypatch.setattr(mirror, "upload", upload)
    monkeypatch.setattr(mirror, "wait_for_all", lambda thread, *_: thread.join())
    mesh, loop = SimpleNamespace(rank=0), SimpleNamespace(alive=lambda: None)
    observer = mirror.Mirror("memory://records", tmp_path, mesh)  # type: ignore[arg-type]
    for records in ("a", "ab", "abc"):
        (tmp_path / METRICS).write_text(records)
        observer.at_checkpoint(loop)  # type: ignore[arg-type]
        assert begun.wait(30)
    ends.set()
    observer.finish(loop)  # type: ignore[arg-type]
    assert sent == ["a", "abc"]
