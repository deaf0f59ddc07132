"""A rewind finds a checkpoint to go back to, or fails before it records or deletes anything."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spikes_test import files, job, poison_of_tokens, spikes_of, tokens

from chaos.poison import poisoned
from trivium.checkpoint.format import published, step_of
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError, DataError
from trivium.provenance import unheard
from trivium.training.config import SpikesConfig, TrainingConfig
from trivium.training.lineage import trace as lineage
from trivium.training.metrics import EVENTS, append, read
from trivium.training.observers import spikes
from trivium.training.record import CHECKPOINTS, LEFT_OUT, read_record, write_entries
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


def rewind(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: Sequence[int],
    *,
    saved: Sequence[int] | None = None,
    tried: Sequence[int] = (),
    damaged: Sequence[int] = (),
    start_from: int | None = None,
    start_with: str = "state",
    batches: int = 8,
) -> int | None:
    """Return the step to which a rewind from step 14 goes back. saved: as logged, if more than are kept."""
    for step in kept:
        (folder / CHECKPOINTS / f"step-{step:08d}").mkdir(parents=True)
    for step in kept if saved is None else saved:
        append(folder / EVENTS, {"event": "saved", "step": step})
    for step in tried:
        append(folder / EVENTS, {"event": "rewound", "step": 14, "to": step})

    def first_intact(paths: Sequence[Path], *given: Any) -> tuple[Any, list[str]]:
        steps = [step_of(path.name) for path in paths]
        good = [step for step in steps if step not in damaged]
        problems = [f"{path.name}/pieces: damaged" for path in paths if step_of(path.name) in damaged]
        return SimpleNamespace(step=good[0]) if good else None, problems

    monkeypatch.setattr(spikes, "first_intact", first_intact)
    monkeypatch.setattr(spikes, "read_manifest", lambda path: {"step": start_from})

    def open_together(path: Path, *given: Any) -> None:
        if start_from in damaged:
            raise CheckpointError(f"{path}/pieces: damaged")

    monkeypatch.setattr(spikes, "Checkpoint", SimpleNamespace(open_together=open_together))
    begin = {} if start_from is None else {"start_from": "given", "start_with": start_with}
    config = TrainingConfig(steps=16, spikes=SpikesConfig(policy="rewind", batches=batches), **begin)
    found = spikes.Rewind(Mesh.single(), folder, config, 14).checkpoint(unheard)
    return None if found is None else found.step


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kept": [3, 6, 9, 12]}, 6),
        ({"kept": [3, 6, 9, 12], "batches": 1}, 12),
        ({"kept": [3, 6, 9, 12], "damaged": [6]}, 3),  # further back past damaged checkpoints
        ({"kept": [3, 6, 9, 12], "tried": [6]}, 3),  # never again to one from which the step failed again
        ({"kept": [9, 12]}, None),  # none so old was ever saved
        ({"kept": [9, 12], "start_from": 6}, None),
        ({"kept": []}, None),
    ],
    ids=str,
)
def test_rewind_goes_back_to_the_newest_intact_checkpoint_before_the_skipped_batches(
    tmp_path: Path, monkeypatch, given: dict[str, Any], expected: int | None
) -> None:
    assert rewind(tmp_path, monkeypatch, **given) == expected


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        # Deleted since, under a policy that did not need them.
        ({"kept": [9, 12], "saved": [3, 6, 9, 12]}, DataError, r"^step 14: .*\(8\) .*that of step 9; .*batches to 5,"),
        ({"kept": [9, 12], "start_from": 7}, DataError, r"batches \(8\) .*that of step 7; .*batches to 7,"),
        (
            {"kept": [3, 6, 9, 12], "damaged": [3, 6]},
            CheckpointError,
            r"batches \(8\) .*step-00000006.*damaged.*batches to 5 .*step 9",
        ),
        ({"kept": [3, 6, 9], "tried": [3, 6]}, DataError, r"after rewinds to step 3, step 6, and no older checkpoint"),
        ({"kept": [9], "tried": [0]}, DataError, r"after rewinds to step 0, and no older checkpoint"),
        (
            {"kept": [], "start_from": 7, "start_with": "weights", "damaged": [7]},
            CheckpointError,
            "given/pieces: damaged",
        ),
    ],
    ids=str,
)
def test_rewind_without_such_a_checkpoint_fails(
    tmp_path: Path, monkeypatch, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        rewind(tmp_path, monkeypatch, **given)
    assert not (tmp_path / LEFT_OUT).exists()


@pytest.mark.broad
@pytest.mark.parametrize("layout", [{}, {"data": 2}], ids=str)
def test_checkpoints_that_a_long_rewind_needs_are_kept_and_used(tokens: Path, tmp_path: Path, layout: dict) -> None:
    clean, out, refused = (tmp_path / name for name in ("clean", "out", "refused"))
    start(job(tokens, clean, "stop", steps=14))
    given: dict[str, Any] = {"keep_last": 2, "layout": layout, "spikes": {"batches": 8}}
    start(job(tokens, out, "rewind", steps=12, **given))
    shutil.copytree(out, refused)
    for step in (3, 6):
        damage(refused, step)
    with poisoned(poison_of_tokens(tokens, clean, 14)):
        start(job(tokens, out, "rewind", steps=16, **given))
        with pytest.raises(CheckpointError, match=r"step 14: .*step-00000006.*damaged"):
            start(job(tokens, refused, "rewind", steps=16, **given))
    assert len(spikes_of(out)) == 1 and resumed(out) == [12, 6]
    assert lineage.round_trip(read_record(out))["agrees"]
    assert not (refused / LEFT_OUT).exists() and 12 in kept(refused)


def test_abandoned_checkpoint_is_deleted_only_after_the_state_is_restored(tokens: Path, tmp_path: Path) -> None:
    """As if training was killed after it had recorded the skipped samples."""
    out = tmp_path / "out"
    start(job(tokens, out, "stop", steps=9))
    write_entries(out, [{"step": 8, "cause": "nan", "gaps": [[56, 64]]}])
    good = (out / CHECKPOINTS / "step-00000006").rename(tmp_path / "good")
    damage(out, 3)
    says = rf"none of the 1 checkpoints .*delete \S+{LEFT_OUT} to resume from step-00000009,"
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
