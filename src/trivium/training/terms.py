"""Conditions that must be equal on all ranks of a training: settings, versions of the code, the list of the tokens, and
the questions of published tasks."""

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from trivium import __version__
from trivium.comms.launch import lends_memory
from trivium.comms.terms import Terms
from trivium.config import leaves, to_tree
from trivium.plan.plan import Plan
from trivium.provenance import fingerprint
from trivium.tokens.manifest import read_tokens_manifest
from trivium.training.config import TrainingConfig
from trivium.untrusted import read_bytes

# Fields that are paths: hosts may have the same files in different places, so only whether one is given must agree.
PATHS = ("training.start_from", "training.evaluation.data")
_OF_TOKENS = ("tokenizer_sha256", "files", "sources", "vocabulary", "end_of_text")  # in their manifest
_CODE = (".py", ".yaml")


def terms_of(plan: Plan, training: TrainingConfig, seed: int, tokens: Path, questions: Mapping[str, str]) -> Terms:
    """Return what must be equal on every rank of a job before its first step. tokens: their folder on this host.
    questions: hashes of what published tasks ask on this host."""
    tree = {"plan": to_tree(plan), "training": to_tree(training), "seed": seed}
    settings = {name: str(value) for name, value in leaves(tree)}
    settings |= {name: "given" for name in PATHS if settings.get(name, "None") != "None"}
    settings["TRIVIUM_MESSAGES"] = "memory" if lends_memory() else "network"
    manifest = read_tokens_manifest(tokens)
    listing = fingerprint({name: manifest.get(name) for name in _OF_TOKENS})
    return Terms(settings, versions(), {"manifest of the token shards": listing, **questions})


def versions() -> dict[str, str]:
    """Return the versions that decide what a step computes."""
    return {
        "trivium": f"{__version__}, code {code_digest()[:12]}",
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
        "numpy": np.__version__,
    }


def code_digest(folder: Path = Path(__file__).parent.parent) -> str:
    """Return a hash of the package's code and tables: the version number stays the same while somebody edits."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in _CODE):
        digest.update(f"{path.relative_to(folder)}\n".encode())
        digest.update(read_bytes(path))
    return digest.hexdigest()
