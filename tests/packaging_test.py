"""The archives of a release contain the whole package."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_source_archive_and_its_wheel_contain_every_file_of_the_package(tmp_path: Path) -> None:
    """`python -m build` and package indexes build the wheel from the source archive, not from the clone."""
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path), "-t"]
    subprocess.run([*build, "sdist"], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        (top,) = {name.split("/")[0] for name in packed.getnames()}
        found = {name.removeprefix(f"{top}/src/") for name in packed.getnames() if name.startswith(f"{top}/src/")}
    files = {p for p in (ROOT / "src/trivium").rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert found == {str(p.relative_to(ROOT / "src")) for p in files}
