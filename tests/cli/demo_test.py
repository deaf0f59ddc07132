"""Stages of the demo share no process with those that fork ranks."""

import os
from pathlib import Path

from trivium.cli import demo
from trivium.cli.run_config import Given, resolve
from trivium.cli.stage import Run
from trivium.cli.workspace import Workspace


def test_only_stages_that_fork_ranks_work_in_this_process(tmp_path: Path, monkeypatch) -> None:
    """No rank can use an accelerator that its launcher used before."""
    monkeypatch.setattr(demo, "examine", lambda at: None)
    monkeypatch.setattr(demo, "make_report", lambda at: [])
    monkeypatch.setattr(
        demo, "perform", lambda stage, run, redo: (tmp_path / stage.name).write_text(str(os.getpid()))
    )
    demo.walk(Run(resolve(Given("demo")), Workspace(tmp_path)))
    by = {stage.name: int((tmp_path / stage.name).read_text()) for stage in demo.STAGES}
    assert {name for name, pid in by.items() if pid == os.getpid()} == {"train", "prove"}
