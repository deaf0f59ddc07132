"""The site builds, and none of its links is broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.broad
def test_site_builds_without_broken_links(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "site" / "reference" / "cli" / "index.html").read_text()
    assert "trivium plan search" in commands
    config = (tmp_path / "site" / "reference" / "config" / "index.html").read_text()
    assert "training.lr" in config
