"""Stages of the demo share no process with those that fork ranks."""

import os
from pathlib import Path

import pytest

from trivium.cli import demo
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
    demo.walk(Run(resolve(Given("demo")), Workspace(tmp_path)))
    by = {stage.name: int((tmp_path / stage.name).read_text()) for stage in demo.STAGES}
    assert {name for name, pid in by.items() if pid == os.getpid()} == {"train", "prove"}


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("words", "error", "law"),
    [
        (("--corpus", "none"), DataError, "--data none does not exist"),
        (("--corpus", "."), ConfigError, "--out run lies in --data"),
        (("--corpus", "a.txt", "--set", "harvest.max_bytes=9"), ConfigError, "a.txt is read instead"),
        (("--from", "trian"), ConfigError, "did you mean 'train'"),
    ],
)
def test_a_dry_run_refuses_what_the_demo_would(tmp_path: Path, monkeypatch, words, error, law, dry) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("A page of text.")
    with pytest.raises(error, match=law):
        command_line()(["demo", "--out", "run", *words, *dry], prog_name="trivium", standalone_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
