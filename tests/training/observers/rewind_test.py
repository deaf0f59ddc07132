"""A rewind finds a checkpoint to go back to, or fails before it records or deletes anything."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from spikes_test import files, job, poison_at, poison_of_tokens, spikes_of, tokens

from chaos.poison import poisoned
from trivium.checkpoint.format import published, step_of
from trivium.errors import CheckpointError, DataError
from trivium.training import loop
from trivium.training.lineage import trace as lineage
from trivium.training.loop import CHECKPOINTS
from trivium.training.metrics import EVENTS, read
from trivium.training.record import LEFT_OUT, read_record, write_entries
from trivium.training.supervision.job import start

__all__ = ["tokens"]  # the fixture


def kept(out: Path) -> list[int | None]:
    return [step_of(path.name) for path in published(out / CHECKPOINTS)]


def resumed(out: Path) -> list[int]:
    return [e["step"] for e in read(out / EVENTS) if e["event"] == "resumed"]


def damage(out: Path, step: int) -> None:
    file = next((out / CHECKPOINTS / f"step-{step:08d}").glob("pieces*"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.broad
def test_checkpoints_that_a_long_rewind_needs_are_kept(tokens: Path, tmp_path: Path, capfd) -> None:
    clean, out = tmp_path / "clean", tmp_path / "out"
    start(job(tokens, clean, "stop", steps=14))
    with poisoned(poison_of_tokens(tokens, clean, 14)):
        start(job(tokens, out, "rewind", steps=16, spikes={"batches": 8}, keep_last=2))
    assert len(spikes_of(out)) == 1 and resumed(out) == [6]
    assert "step 14: rewound to step 6; batches that are skipped from now on: 8" in capfd.readouterr().err
    assert lineage.round_trip(read_record(out))["agrees"]


@pytest.mark.broad
def test_rewind_to_a_deleted_checkpoint_fails_and_deletes_nothing(tokens: Path, tmp_path: Path) -> None:
    """As under a policy that did not need them."""
    clean, out = tmp_path / "clean", tmp_path / "out"
    start(job(tokens, clean, "stop", steps=14))
    start(job(tokens, out, "stop", steps=12, keep_last=2))
    given: dict[str, Any] = {"steps": 16, "keep_last": 2}
    with poisoned(poison_of_tokens(tokens, clean, 14)):
        with pytest.raises(DataError, match=r"step 14: .*batches \(8\) .*that of step 9; .*batches to 5,"):
            start(job(tokens, out, "rewind", spikes={"batches": 8}, **given))
        assert kept(out) == [9, 12] and not (out / LEFT_OUT).exists()
        start(job(tokens, out, "rewind", spikes={"batches": 5}, **given))
    assert resumed(out)[-1] == 9
    assert lineage.round_trip(read_record(out))["agrees"]


def test_rewind_to_before_the_given_state_fails_and_deletes_nothing(tokens: Path, tmp_path: Path) -> None:
    clean, out = tmp_path / "clean", tmp_path / "out"
    start(job(tokens, clean, "stop", steps=11, keep_last=4))
    state = {"start_from": str(clean / CHECKPOINTS / "step-00000006"), "start_with": "state", "steps": 12}
    with poisoned(poison_of_tokens(tokens, clean, 11)):
        with pytest.raises(DataError, match=r"batches \(8\) .*that of step 6; .*batches to 5,"):
            start(job(tokens, out, "rewind", spikes={"batches": 8}, **state))
        assert kept(out) == [9] and not (out / LEFT_OUT).exists()
        start(job(tokens, out, "rewind", spikes={"batches": 5}, **state))
    assert kept(out)[-1] == 12 and len(read_record(out).entries) == 1


@pytest.mark.broad
@pytest.mark.parametrize("layout", [{}, {"data": 2}], ids=str)
def test_rewind_past_damaged_checkpoints_goes_further_back_or_fails(
    tokens: Path, tmp_path: Path, layout: dict[str, int]
) -> None:
    """Refused before it is recorded: what is recorded later starts keep to, and would find nothing to go on from."""
    clean, further, refused = (tmp_path / name for name in ("clean", "further", "refused"))
    start(job(tokens, clean, "stop", steps=14))
    start(job(tokens, further, "stop", steps=12, keep_last=4, layout=layout))
    damage(further, 6)
    shutil.copytree(further, refused)
    damage(refused, 3)
    given: dict[str, Any] = {"steps": 16, "keep_last": 4, "layout": layout}
    with poisoned(poison_of_tokens(tokens, clean, 14)):
        start(job(tokens, further, "rewind", spikes={"batches": 8}, **given))
        with pytest.raises(
            CheckpointError, match=r"step 14: .*batches \(8\) .*step-00000006.*damaged.*batches to 5 .*step 9"
        ):
            start(job(tokens, refused, "rewind", spikes={"batches": 8}, **given))
        assert kept(refused) == [3, 6, 9, 12] and not (refused / LEFT_OUT).exists()
        start(job(tokens, refused, "rewind", spikes={"batches": 5}, **given))
    assert resumed(further) == [12, 3] and resumed(refused) == [12, 12, 9]
    for out in (further, refused):
        assert len(spikes_of(out)) == len(resumed(out)) - 1
        assert lineage.round_trip(read_record(out))["agrees"]


def test_rewind_to_the_beginning_fails_if_the_given_checkpoint_is_damaged(
    tokens: Path, tmp_path: Path, monkeypatch
) -> None:
    clean, out = tmp_path / "clean", tmp_path / "out"
    start(job(tokens, clean, "stop", steps=3))
    begun = {"start_from": str(clean / CHECKPOINTS / "step-00000003"), "steps": 4}
    right = loop.Loop.train_step

    def step(self):
        if self.step == 2:
            damage(clean, 3)
        return right(self)

    monkeypatch.setattr(loop.Loop, "train_step", step)
    with poisoned(poison_at(2)), pytest.raises(CheckpointError, match=r"step-00000003/pieces.*: damaged"):
        start(job(tokens, out, "rewind", **begun))
    assert not (out / LEFT_OUT).exists()
    damage(clean, 3)  # the same bit again
    monkeypatch.undo()
    start(job(tokens, out, "rewind", **begun))
    assert kept(out) == [3, 4]


def test_abandoned_checkpoint_is_deleted_only_after_the_state_is_restored(tokens: Path, tmp_path: Path) -> None:
    """As when training was killed after it had recorded what is left out."""
    out = tmp_path / "out"
    start(job(tokens, out, "stop", steps=9))
    write_entries(out, [{"step": 8, "cause": "nan", "gaps": [[56, 64]]}])
    good = (out / CHECKPOINTS / "step-00000006").rename(tmp_path / "good")
    damage(out, 3)
    says = rf"none of the 1 checkpoints .*delete \S+{LEFT_OUT} to go on from step-00000009,"
    with pytest.raises(CheckpointError, match=says):
        start(job(tokens, out, "rewind", steps=9))
    assert kept(out) == [3, 9]
    without = shutil.copytree(out, tmp_path / "without")
    (without / LEFT_OUT).unlink()
    start(job(tokens, without, "rewind", steps=9))
    assert resumed(without) == [9]
    good.rename(out / CHECKPOINTS / "step-00000006")
    start(job(tokens, out, "rewind", steps=9))
    assert resumed(out) == [6] and files(out, 9)
