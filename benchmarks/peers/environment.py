"""A virtual environment for each peer, built from pinned requirements into benchmarks/.venvs."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trivium.mkl import RETURN_ONE, SYMBOL, is_amd_with_avx512, shared_object

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / ".venvs"
TORCH = ("torch==2.13.0",)
INSTALL_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Environment:
    """steps: the arguments of each `pip install`, in order; variables: set while installing and while running."""

    name: str
    steps: tuple[tuple[str, ...], ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    folder: Path = FOLDER

    @property
    def path(self) -> Path:
        """Folder of the virtual environment."""
        return self.folder / self.name

    @property
    def python(self) -> Path:
        """Interpreter of the virtual environment."""
        return self.path / "bin" / "python"

    def key(self) -> str:
        """Changes with the requirements, the order of installing and the interpreter's version."""
        files = {name: (HERE / name).read_text() for step in self.steps for name in step if name.endswith(".txt")}
        content = json.dumps([self.steps, dict(self.variables), files, sys.version_info[:2]], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def is_ready(self) -> bool:
        """Installed completely, from the present requirements."""
        stamp = self.path / "key"
        return stamp.exists() and stamp.read_text() == self.key()

    def install(self) -> None:
        """Build it anew unless it is ready; CalledProcessError or TimeoutExpired when a step fails."""
        if self.is_ready():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / ".gitignore").write_text("*\n")
        subprocess.run([sys.executable, "-m", "venv", "--clear", self.path], check=True)
        for step in self.steps:
            command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", *step]
            subprocess.run(command, check=True, cwd=HERE, env=self.surroundings(), timeout=INSTALL_TIMEOUT_SECONDS)
        (self.path / "key").write_text(self.key())

    def surroundings(self) -> dict[str, str]:
        """Environment variables of a process in it; compiled extensions stay inside its folder."""
        return {
            **os.environ,
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "TORCH_EXTENSIONS_DIR": str(self.path / "extensions"),
            **self.variables,
        }


PRELOADED = "LD_PRELOAD"


def fast_mkl() -> dict[str, str]:
    """Return the environment that gives a peer MKL's fast kernels, which Trivium loads by itself; empty where MKL has
    them anyway. docs/decisions/0011 says what they are."""
    if not is_amd_with_avx512():
        return {}
    library = Path(tempfile.gettempdir()) / f"{SYMBOL}-{os.getuid()}.so"
    content = shared_object(SYMBOL, RETURN_ONE)
    if not library.exists() or library.read_bytes() != content:
        # Never into the file itself, which processes of another benchmark have mapped.
        part = library.with_name(f"{library.name}.{os.getpid()}")
        part.write_bytes(content)
        part.replace(library)
    return {PRELOADED: str(library)}


def environments(folder: Path = FOLDER) -> dict[str, Environment]:
    """Return the environment of each peer by name."""
    megatron = Environment(
        "megatron-core",
        (TORCH, ("-r", "megatron-core.txt")),
        variables={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},  # it warns without, also on a processor
        folder=folder,
    )
    deepspeed = Environment(
        "DeepSpeed",
        (TORCH, ("-r", "deepspeed.txt"), ("--no-deps", "--no-build-isolation", "deepspeed==0.19.8")),
        variables={"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"},
        folder=folder,
    )
    transformers = Environment("transformers", (TORCH, ("-r", "transformers.txt")), folder=folder)
    fabric = Environment("Fabric", (TORCH, ("-r", "fabric.txt")), folder=folder)
    return {each.name: each for each in (megatron, deepspeed, transformers, fabric)}
