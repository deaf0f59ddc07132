"""Shared by the tests of the command line."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from stores.conftest import bucket, store
from trivium.cli import main as entry

__all__ = ("bucket", "store")


class Ended(NamedTuple):
    """Exit code, standard output and standard error of a command that ran in this process."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path) -> Callable[..., Ended]:
    """Run `trivium` with the given words in an empty directory."""

    def run(*words: str) -> Ended:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["trivium", *words])
        with pytest.raises(SystemExit) as stopped:
            entry.main()
        return Ended(int(stopped.value.code or 0), *capsys.readouterr())

    return run
