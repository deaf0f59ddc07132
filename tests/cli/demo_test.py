"""The demo as a whole: what it forks, where it trains, and what it shows last."""

import json
import os
from pathlib import Path

import pytest

from trivium.cli import demo
from trivium.cli.generate import SAMPLES
from trivium.cli.main import command_line
from trivium.cli.run_config import Given, resolve
from trivium.cli.stage import Run
from trivium.cli.workspace import Workspace
from trivium.errors import ConfigError, DataError


def test_only_stages_that_fork_ranks_work_in_this_process(tmp_path: Path, monkeypatch) -> None:
    """No rank can use an accelerator that its launcher used before."""
    monkeypatch.setattr(demo, "examine", lambda at: None)
    monkeypatch.setattr(demo, "make_report", lambda at: [])
    monkeypatch.setattr(demo, "perform", lambda stage, run, redo: (tmp_path / stage.name).write_text(str(os.getpid())))
    monkeypatch.setattr(demo, "written", lambda run: [])
    demo.walk(Run(resolve(Given("demo")), Workspace(tmp_path)))
    by = {stage.name: int((tmp_path / stage.name).read_text()) for stage in demo.STAGES}
    assert {name for name, pid in by.items() if pid == os.getpid()} == {"train", "prove"}


@pytest.mark.parametrize(
    ("sets", "ranks", "moves"),
    [
        ((), None, True),
        (("training.lr=0.001",), None, True),
        (("plan.layout.data=1",), None, False),
        (("training.fastest_after=0",), None, False),
        ((), 4, False),
        (("training.steps=30",), None, False),
    ],
)
def test_training_moves_to_the_fastest_layout_unless_the_user_chose_one(sets, ranks, moves, tmp_path: Path) -> None:
    run = Run(resolve(Given("demo", sets, ranks)), Workspace(tmp_path))
    moved = demo.moving(run, sets, ranks)
    assert moved.config.training.fastest_after == (demo.MOVES_AFTER_STEPS if moves else 0)
    assert moved.config.plan == run.config.plan
    (tmp_path / "training").mkdir()
    assert demo.moving(run, None, None) == run


def test_a_short_training_saves_a_checkpoint_to_resume_from(tmp_path: Path, capsys) -> None:
    run = Run(resolve(Given("demo", ("training.steps=40",))), Workspace(tmp_path))
    assert demo.saving_early(run, ["training.steps=40"]).config.training.checkpoint_every == 37
    assert "training.checkpoint_every is 37 instead of 100" in capsys.readouterr().out
    assert demo.saving_early(Run(resolve(Given("demo")), Workspace(tmp_path)), None).config == resolve(Given("demo"))


def test_samples_are_shown_whole_and_begin_with_their_prompts(tmp_path: Path) -> None:
    run = Run(resolve(Given("demo")), Workspace(tmp_path))
    (tmp_path / "generate").mkdir()
    samples = [{"prompt": "Once upon", "continuation": " a time\n\n" + "there was a king " * 20}]
    (tmp_path / "generate" / SAMPLES).write_text(json.dumps(samples))
    lines = list(demo.written(run))
    assert lines[0].startswith("  Once upon a time there was") and all(len(line) <= demo.COLUMNS for line in lines)
    assert " ".join(" ".join(lines).split()) == "Once upon a time " + "there was a king " * 19 + "there was a king"


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("words", "error", "law"),
    [
        (("--corpus", "none"), DataError, "--data none does not exist"),
        (("--corpus", "."), ConfigError, "--out run lies in --data"),
        (("--corpus", "a.txt", "--set", "harvest.max_bytes=9"), ConfigError, "a.txt is read instead"),
        (("--from", "trian"), ConfigError, "did you mean 'train'"),
        (("--set", "training.steps=3"), ConfigError, "set training.steps=4 and training.checkpoint_every=1"),
        (("--steps", "40", "--checkpoint-every", "38"), ConfigError, "be saved; set training.checkpoint_every=37"),
    ],
)
def test_a_dry_run_refuses_what_the_demo_would(tmp_path: Path, monkeypatch, words, error, law, dry) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("A page of text.")
    with pytest.raises(error, match=law):
        command_line()(["demo", "--out", "run", *words, *dry], prog_name="trivium", standalone_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
