"""`trivium prove` is of the training that was done, or refused before anything is trained."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.scene import job, plan
from trivium.checkpoint.format import step_name
from trivium.checkpoint.lease import Holder, holder_of
from trivium.cli import prove
from trivium.cli.main import command_line
from trivium.cli.options import given_for, open_run
from trivium.cli.train import TRAIN
from trivium.comms.launch import Ranks
from trivium.config import differences, to_tree
from trivium.errors import CheckpointError, ConfigError, TriviumError
from trivium.plan.layout import Layout
from trivium.provenance import STAMP, describe, write_json
from trivium.training import prove as proving
from trivium.training.loop import TrainingJob
from trivium.training.metrics import METRICS, append
from trivium.training.prove import _layouts, prove_resume
from trivium.training.record import CHECKPOINTS


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run whose training, of a rate that does not ask for the last step, is finished."""
    out = tmp_path / "run"
    run = open_run(out, given_for(out, "demo", ["training.decay=constant", "training.steps=20"]))
    for name in ("tokens", "training"):
        (out / name).mkdir(parents=True)
        write_json(out / name / STAMP, describe(verb=name, config=TRAIN.config(run), inputs={}))
    (out / "training" / CHECKPOINTS / step_name(10)).mkdir(parents=True)
    write_json(out / "config.json", to_tree(run.config))
    return out


def proved(out: Path, monkeypatch: pytest.MonkeyPatch, *sets: str) -> bool:
    """Whether it comes to the work."""
    begun: list[Path] = []
    stage = replace(prove.PROVE, work=lambda run, out, progress: begun.append(out), summary=lambda result: [])
    monkeypatch.setattr(prove, "PROVE", stage)
    words = ["prove", "--out", str(out), *(word for each in sets for word in ("--set", each))]
    command_line()(words, prog_name="trivium", standalone_mode=False)
    return bool(begun)


@pytest.mark.parametrize("other", ["training.steps=10", "training.steps=40", "training.lr=0.5", "seed=3"])
def test_another_training_is_refused_before_it_is_done(
    other: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}
    path, value = other.split("=")
    with pytest.raises(ConfigError, match=rf"(?s)another one \(recorded -> requested\):\n  {path}: .* -> {value}"):
        proved(trained, monkeypatch, other)
    assert {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()} == before


def test_the_same_training_is_done_again_under_any_layout(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proved(trained, monkeypatch)
    assert proved(trained, monkeypatch, "plan.layout.tensor=1", "training.supervision.hang_seconds=7")


def test_a_proof_that_cannot_be_begun_leaves_the_one_before_it(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proved(trained, monkeypatch)
    before = {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}
    (trained / "training" / CHECKPOINTS / step_name(10)).rmdir()
    with pytest.raises(CheckpointError, match="more than 2 steps before the last"):
        proved(trained, monkeypatch, "plan.layout.tensor=1")
    assert {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()} == before


def test_the_folder_of_a_proof_is_held_while_it_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = job(tmp_path, tmp_path / "resume", plan({}), steps=10)
    reference = tmp_path / "reference"
    (reference / CHECKPOINTS / step_name(4)).mkdir(parents=True)
    (reference / METRICS).touch()
    copy, held = proving.shutil.copytree, []

    def copied(source: Path, to: Path) -> None:
        held.append(holder_of(given.out))
        copy(source, to)

    def started(job: TrainingJob, *, lease: Holder, **_: object) -> None:
        held.append(lease)

    monkeypatch.setattr(proving.shutil, "copytree", copied)
    monkeypatch.setattr(proving, "start", started)
    with pytest.raises(TriviumError, match="before rank"):
        prove_resume(given, reference=reference)
    assert [each.pid for each in held] == [os.getpid()] * 2 and holder_of(given.out) is None


@pytest.mark.parametrize("name", [path.split(".")[1] for path in prove.CHOSEN])
def test_what_a_proof_chooses_itself_is_no_setting_of_it(
    name: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = "training.evaluation={every: 5, tasks: hans}" if name == "evaluation" else f"training.{name}=4"
    with pytest.raises(ConfigError, match=rf"training\.{name}\S*.*: `trivium prove` does not read this; it is chosen"):
        proved(trained, monkeypatch, setting)


def test_a_proof_changes_nothing_else_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except the tasks, which are asked where there is an examiner."""
    given = job(tmp_path, tmp_path / "resume", plan({}), steps=10, checkpoint_every=2, keep_every=4)
    reference = tmp_path / "reference"
    (reference / CHECKPOINTS / step_name(4)).mkdir(parents=True)
    (reference / METRICS).touch()
    started: list[TrainingJob] = []
    monkeypatch.setattr(proving, "start", lambda job, **_: started.append(job))
    with pytest.raises(TriviumError, match="before rank"):
        prove_resume(given, reference=reference)
    changed = [line.split(":")[0] for line in differences(to_tree(given.training), to_tree(started[0].training))]
    assert {f"training.{name}" for name in (*changed, "evaluation")} == set(prove.CHOSEN) and given.examiner is None


@pytest.mark.parametrize(("saved", "steps"), [((8, 9, 10), 10), ((10,), 10)])
def test_a_training_without_a_checkpoint_before_which_a_rank_could_be_killed_is_refused_at_once(
    saved: tuple[int, ...], steps: int, tmp_path: Path
) -> None:
    for step in saved:
        (tmp_path / "reference" / CHECKPOINTS / step_name(step)).mkdir(parents=True)
    out = tmp_path / "resume"
    with pytest.raises(CheckpointError, match="more than 2 steps before the last"):
        prove_resume(job(tmp_path, out, plan({}), steps=steps), reference=tmp_path / "reference")
    assert not out.exists()


def test_last_rank_is_killed_once_at_the_chosen_step_and_later_losses_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = job(tmp_path, tmp_path / "resume", plan({"data": 2, "tensor": 2}), steps=13)
    reference, killed = tmp_path / "reference", list[tuple[int, int]]()
    (reference / CHECKPOINTS / step_name(4)).mkdir(parents=True)
    for step in range(1, 14):
        append(reference / METRICS, {"step": step, "loss": 5.0 - step / 4})

    def started(job: TrainingJob, *, watch: Callable[[Ranks, int], None], **_: object) -> None:
        for step in range(5, 14):
            watch(SimpleNamespace(pids=[101, 102, 103, 104]), step)
            append(job.out / METRICS, {"step": step, "loss": 5.0 - step / 4})

    monkeypatch.setattr(proving.os, "kill", lambda *given: killed.append(given))
    monkeypatch.setattr(proving, "start", started)
    monkeypatch.setattr(proving.shutil, "copy", lambda *given: None)
    proof = prove_resume(given, reference=reference)
    assert killed == [(104, signal.SIGKILL)] and (proof["killed"]["rank"], proof["killed"]["step"]) == (3, 7)
    assert proof["steps_compared"] == 9 and proof["max_loss_difference"] == 0.0


def test_a_proof_of_a_long_training_ends_after_a_few_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = job(tmp_path, tmp_path / "resume", plan({}), steps=1000)
    (tmp_path / "reference" / CHECKPOINTS / step_name(900)).mkdir(parents=True)
    (tmp_path / "reference" / METRICS).touch()
    started: list[TrainingJob] = []
    monkeypatch.setattr(proving, "start", lambda job, **_: started.append(job))
    with pytest.raises(TriviumError, match="ended at step 920 before rank"):
        prove_resume(given, reference=tmp_path / "reference")
    assert started[0].last == 920 and started[0].training.steps == 1000


@pytest.mark.parametrize("degrees", [{}, {"data": 3}, {"tensor": 2, "pipeline": 3}, {"pipeline": 2, "data": 4}])
def test_other_layouts_are_for_as_many_ranks_or_twice_as_many(degrees: dict[str, int]) -> None:
    now = Layout(**degrees)
    found = list(_layouts(now.world_size, now))
    assert found and now not in found and len(set(found)) == len(found)
    sizes = [layout.world_size for layout in found]
    assert set(sizes) <= {now.world_size, 2 * now.world_size} and sizes == sorted(sizes)
