"""What a figure depends on besides the code: stands at the head of every report."""

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peers.environment import fast_mkl


def circumstances(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Date, command, commit, machine and versions, as every report starts."""
    given = os.environ.get("TRIVIUM_COMMIT")  # of a copy, whatever repository it lies in
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join([f"python {script}", *(_plain(a) for a in arguments)]),
        "commit": given or _git("rev-parse", "--short", "HEAD") or "unknown",
        "changed": not given and bool(_git("status", "--porcelain", "--", "src", "benchmarks")),
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.platform()},
        "fast_mkl": bool(fast_mkl()),  # whether peers had MKL's fast kernels preloaded
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _plain(argument: str) -> str:
    """A path as a reader would type it: folders outside the repository are nobody's business."""
    path = Path(argument)
    return path.name if path.is_absolute() else argument


def _processor() -> str:
    """Return the name of the CPU with its family and model, because hypervisors shorten the names of different
    generations to one."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    if not {"model name", "cpu family", "model"} <= said.keys():
        return said.get("model name", platform.processor())
    return "{model name}, family {cpu family} model {model}".format(**said)


def _git(*arguments: str) -> str:
    """What git says, or nothing where it is not installed or this is no repository."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    except OSError:
        return ""
    return done.stdout.strip()
